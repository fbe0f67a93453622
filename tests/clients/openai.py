"""Calls a running examples/serve with Python's clients of OpenAI's interface, and prints a line for each call.

usage: openai.py CLIENT HTTP_ADDRESS ADMIN_ADDRESS GUARDED_ADDRESS TOKEN

CLIENT is openai, cohere, jina, langchain or litellm. The server has the models tiny, vectors and ranks. The guarded one wants TOKEN,
lets an address make 2 requests at a time, and ends a request after 2 seconds. The exit status is 0 if all calls have
worked, 1 if one has not, and 77 if the client is not installed.
"""

import base64
import json
import os
import struct
import sys
import threading
import time
import traceback
import urllib.request

# A script's own folder comes first in sys.path, where this file would stand for the package.
sys.path.pop(0)

client, http, admin, guarded, token = sys.argv[1:]
V1 = f"http://{http}/v1"
HELLO = [{"role": "user", "content": "Where do streams end?"}]
calls = []


def call(fn):
    """Registers a call. Its name is what the line tells."""
    calls.append(fn)
    return fn


def raises(kind, fn, **want):
    """Checks that fn fails with an error that has some attributes."""
    try:
        fn()
    except kind as e:
        for name, value in want.items():
            assert getattr(e, name) == value, f"{name} is {getattr(e, name)!r}, want {value!r}: {e}"
        return e
    raise AssertionError(f"no {kind.__name__}")


def metric(name):
    with urllib.request.urlopen(f"http://{admin}/metrics") as page:
        for line in page.read().decode().splitlines():
            if line.startswith(f'streamtorch_text_{name}{{model="tiny"}}'):
                return float(line.split()[-1])
    raise AssertionError(f"no metric {name}")


def eventually(fn, seconds=20):
    end = time.monotonic() + seconds
    while not fn():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


TOOLS = [
    {"type": "function", "function": {
        "name": name, "description": "A switch.", "strict": True,
        "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "attic"]}}, "required": ["on", "room"], "additionalProperties": False},
    }}
    for name in ("light", "heating")
]


def use_openai():
    import openai
    from pydantic import BaseModel
    from typing import Literal

    c = openai.OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=60)
    # The model draws its tokens by chance. Without these bytes a bounded answer has no escapes and no space, so it ends.
    brief = {str(ord(b)): -100 for b in "\\ \t\r\n"}
    chat = lambda **o: c.chat.completions.create(model="tiny", messages=o.pop("messages", HELLO), **{"max_tokens": 12, "seed": 3, **o})

    @call
    def chat_whole():
        r = chat()
        assert r.object == "chat.completion" and r.model == "tiny" and r.id.startswith("chatcmpl-") and abs(r.created - time.time()) < 60
        m = r.choices[0]
        assert m.message.role == "assistant" and m.message.content and m.finish_reason == "length" and m.logprobs is None
        assert m.message.refusal is None and m.message.tool_calls is None
        assert r.usage.completion_tokens == 12 and r.usage.total_tokens == r.usage.prompt_tokens + 12
        assert {"content", "refusal"} <= m.message.model_fields_set, m.message.model_fields_set

    @call
    def chat_streamed():
        events = list(chat(stream=True, stream_options={"include_usage": True}))
        assert all(e.object == "chat.completion.chunk" and e.id == events[0].id for e in events)
        assert events[0].choices[0].delta.role == "assistant" and events[0].choices[0].finish_reason is None
        assert events[-1].choices == [] and events[-1].usage.completion_tokens == 12 and events[-2].choices[0].finish_reason == "length"
        text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
        assert text == chat().choices[0].message.content

    @call
    def chat_stream_helper():
        stop = chat().choices[0].message.content[6:8]  # the helper refuses answers that are cut off
        with c.chat.completions.stream(model="tiny", messages=HELLO, max_tokens=12, seed=3, stop=stop) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
        assert final.choices[0].message.content == chat(stop=stop).choices[0].message.content

    @call
    def chat_n_seed_stop():
        two = chat(n=2)
        assert [o.index for o in two.choices] == [0, 1] and two.choices[0].message.content != two.choices[1].message.content
        assert [o.message.content for o in two.choices] == [o.message.content for o in chat(n=2).choices]
        assert two.usage.completion_tokens == 24
        whole = two.choices[0].message.content
        cut = chat(stop=[whole[4:6], "never"]).choices[0]
        assert cut.finish_reason == "stop" and cut.message.content == whole[: whole.index(whole[4:6])]
        assert chat(stop=whole[4:6]).choices[0].message.content == cut.message.content

    @call
    def chat_logprobs():
        r = chat(logprobs=True, top_logprobs=2).choices[0]
        assert len(r.logprobs.content) == 12 and all(len(p.top_logprobs) == 2 and p.logprob < 0 for p in r.logprobs.content)
        assert bytes(b for p in r.logprobs.content for b in p.bytes or []).decode(errors="replace")[:1] == r.message.content[:1]
        assert all(p.top_logprobs == [] for p in chat(logprobs=True).choices[0].logprobs.content)
        streamed = [p for e in chat(logprobs=True, top_logprobs=2, stream=True) for o in e.choices if o.logprobs for p in o.logprobs.content]
        assert [p.logprob for p in streamed] == [p.logprob for p in r.logprobs.content]

    @call
    def chat_fields():
        for o in (
            {"temperature": 0, "top_p": 1, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"65": 5}, "user": "u"},
            {"max_tokens": None, "max_completion_tokens": 3, "n": None, "stop": None, "tools": None, "response_format": {"type": "text"}},
            {"metadata": {"a": "b"}, "service_tier": "auto", "store": False, "safety_identifier": "s", "prompt_cache_key": "k", "parallel_tool_calls": True, "modalities": ["text"]},
            {"extra_body": {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "priority": 2, "chat_template_kwargs": {"open": False}}},
            {"logprobs": False, "top_logprobs": None, "stream": False, "stream_options": None, "verbosity": "medium"},
            {"stream": False, "extra_headers": {"X-Other": "1"}, "extra_query": {"other": "1"}},
        ):
            assert chat(**o).choices[0].message.content, o

    @call
    def chat_history_with_tools():
        first = chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "light"}}, max_tokens=200, logit_bias=brief).choices[0]
        (made,) = first.message.tool_calls
        arguments = json.loads(made.function.arguments)
        assert first.finish_reason == "tool_calls" and made.type == "function" and made.function.name == "light", first
        assert set(arguments) == {"on", "room"} and first.message.content is None and "content" in first.message.model_fields_set
        history = HELLO + [first.message, {"role": "tool", "tool_call_id": made.id, "content": "done"}, {"role": "user", "content": [{"type": "text", "text": "and now?"}]}]
        assert chat(messages=history, tools=TOOLS).usage.prompt_tokens > 100
        assert chat(messages=history + [{"role": "assistant", "content": None, "tool_calls": [made.model_dump()]}, {"role": "tool", "tool_call_id": made.id, "content": ""}], tools=TOOLS)
        assert chat(messages=[{"role": "developer", "content": "Be short."}, *HELLO, {"role": "assistant", "content": "Yes.", "refusal": None, "audio": None, "function_call": None, "annotations": []}, *HELLO])

    @call
    def chat_tool_required():
        for seed in range(3):
            r = chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200, logit_bias=brief, seed=seed).choices[0]
            assert r.finish_reason == "tool_calls" and r.message.tool_calls[0].function.name in ("light", "heating"), r
        assert chat(tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None
        assert chat(tools=TOOLS, tool_choice="auto").choices[0].message.content

    @call
    def chat_tool_streamed():
        deltas = [o.delta for e in chat(tools=TOOLS, tool_choice="required", max_tokens=200, logit_bias=brief, stream=True) for o in e.choices]
        (made,) = [t for d in deltas for t in d.tool_calls or []]
        assert made.index == 0 and made.id and made.function.name and json.loads(made.function.arguments)
        with c.chat.completions.stream(model="tiny", messages=HELLO, tools=TOOLS, tool_choice="required", max_tokens=200, logit_bias=brief) as stream:
            assert any(e.type == "tool_calls.function.arguments.done" for e in stream)

    class Weather(BaseModel):
        sunny: bool
        wind: Literal["calm", "storm"]

    @call
    def chat_parse_pydantic():
        r = c.chat.completions.parse(model="tiny", messages=HELLO, response_format=Weather, max_tokens=200, logit_bias=brief, seed=1).choices[0]
        assert isinstance(r.message.parsed, Weather) and r.finish_reason == "stop", r
        made = c.chat.completions.parse(model="tiny", messages=HELLO, tools=[openai.pydantic_function_tool(Weather)], tool_choice="required", max_tokens=200, logit_bias=brief)
        assert isinstance(made.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)

    @call
    def chat_json_object():
        r = chat(response_format={"type": "json_object"}, logit_bias={"125": 100}, max_tokens=40).choices[0]
        assert json.loads(r.message.content) == {} and r.finish_reason == "stop"

    @call
    def completions():
        go = lambda prompt, **o: c.completions.create(model="tiny", prompt=prompt, **{"seed": 2, "max_tokens": 6, **o})
        one = go("abc")
        assert one.object == "text_completion" and one.choices[0].finish_reason == "length" and one.choices[0].logprobs is None and one.usage.prompt_tokens == 3
        assert go([97, 98, 99]).choices[0].text == one.choices[0].text == go([[97, 98, 99]]).choices[0].text
        assert [o.index for o in go(["abc", "b"], n=2).choices] == [0, 1, 2, 3]
        assert go("abc", echo=True).choices[0].text == "abc" + one.choices[0].text
        listed = go("abc", logprobs=2).choices[0].logprobs
        assert len(listed.tokens) == len(listed.token_logprobs) == len(listed.top_logprobs) == len(listed.text_offset) == 6
        events = list(go("abc", stream=True, stream_options={"include_usage": True}))
        assert "".join(o.text for e in events for o in e.choices) == one.choices[0].text and events[-1].usage.total_tokens == 9
        assert c.completions.create(model="tiny", prompt="abc", extra_body={"ignore_eos": True}).usage.completion_tokens == 16

    @call
    def embeddings():
        make = lambda of, **o: c.embeddings.create(model="vectors", input=of, **o)
        floats = make(["a b", "c"], encoding_format="float")
        assert [d.index for d in floats.data] == [0, 1] and floats.usage.prompt_tokens == floats.usage.total_tokens > 0 and floats.object == "list"
        v = floats.data[0].embedding
        assert len(make(["a b", "c"]).data) == 2 and max(abs(a - b) for a, b in zip(make("a b").data[0].embedding, v)) < 1e-6  # base64
        raw = base64.b64decode(make("a b", encoding_format="base64").data[0].embedding)
        assert max(abs(a - b) for a, b in zip(struct.unpack(f"<{len(v)}f", raw), v)) < 1e-6
        short = make("a b", dimensions=4).data[0].embedding
        assert len(short) == 4 and abs(sum(x * x for x in short) - 1) < 1e-3
        assert len(make([[2, 5, 3], [2, 3]], user="u").data) == 2 and len(make([2, 5, 3]).data) == 1
        raises(openai.BadRequestError, lambda: make("a " * 5000), code="context_length_exceeded", param="input[0]")
        assert make("a " * 5000, extra_body={"truncate": True}).data

    @call
    def models():
        assert [m.id for m in c.models.list()] == ["ranks", "tiny", "vectors"]
        m = c.models.retrieve("tiny")
        assert m.object == "model" and m.owned_by and m.created > 0
        raises(openai.NotFoundError, lambda: c.models.retrieve("none"), code="model_not_found")

    @call
    def errors():
        raises(openai.NotFoundError, lambda: c.chat.completions.create(model="none", messages=HELLO), code="model_not_found", param="model")
        raises(openai.BadRequestError, lambda: chat(temperature=7), param="temperature", type="invalid_request_error")
        raises(openai.BadRequestError, lambda: chat(extra_body={"colour": "red"}), param="colour")
        raises(openai.BadRequestError, lambda: chat(messages=[{"role": "user", "content": "x" * 9000}]), code="context_length_exceeded")
        raises(openai.BadRequestError, lambda: chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]))
        raises(openai.BadRequestError, lambda: chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {"type": "object", "not": {}}}}))
        raises(openai.NotFoundError, lambda: c.responses.create(model="tiny", input="a"))
        raises(openai.APITimeoutError, lambda: c.with_options(timeout=0.05).chat.completions.create(model="tiny", messages=HELLO, max_tokens=4000, extra_body={"ignore_eos": True}))

    @call
    def stream_closed_early():
        eventually(lambda: metric("running") == 0)
        stream = chat(stream=True, max_tokens=7000, extra_body={"ignore_eos": True})
        next(iter(stream))
        eventually(lambda: metric("running") == 1)
        stream.close()
        eventually(lambda: metric("running") == 0, 5)
        with chat(stream=True, max_tokens=7000, extra_body={"ignore_eos": True}) as stream:
            for _ in stream:
                break
        eventually(lambda: metric("running") == 0, 5)

    @call
    def asynchronous():
        import asyncio

        async def go():
            async with openai.AsyncOpenAI(base_url=V1, api_key="none", max_retries=0) as a:
                async def one(seed):
                    text = ""
                    async for e in await a.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12, seed=seed, stream=True):
                        text += e.choices[0].delta.content or ""
                    return text
                return await asyncio.gather(*(one(3 + i % 2) for i in range(16)))

        texts = asyncio.run(go())
        assert len(set(texts)) == 2 and texts[0] == chat().choices[0].message.content

    @call
    def guarded_by_a_token():
        g = openai.OpenAI(base_url=f"http://{guarded}/v1", api_key=token, max_retries=0)
        raises(openai.AuthenticationError, g.with_options(api_key="wrong").models.list, status_code=401, code="invalid_api_key")
        raises(openai.AuthenticationError, lambda: g.with_options(api_key="wrong").chat.completions.create(model="tiny", messages=HELLO))
        assert [m.id for m in g.models.list()] == ["tiny"]

    @call
    def too_many_and_too_slow():
        g = openai.OpenAI(base_url=f"http://{guarded}/v1", api_key=token, max_retries=0)
        long = lambda **o: g.chat.completions.create(model="tiny", messages=HELLO, max_tokens=7000, extra_body={"ignore_eos": True}, **o)
        open_streams = [long(stream=True) for _ in range(2)]
        for s in open_streams:
            next(iter(s))
        raises(openai.RateLimitError, g.models.list, status_code=429, code="rate_limit_exceeded")
        began = time.monotonic()
        closer = threading.Timer(0.3, lambda: [s.close() for s in open_streams])
        closer.start()
        assert list(g.with_options(max_retries=3).models.list()) and time.monotonic() - began > 0.3
        closer.join()
        raises(openai.InternalServerError, long, status_code=504)
        raises(openai.APIError, lambda: list(long(stream=True)))


def use_cohere():
    import cohere

    texts = ["a", "b c", "d e f"]
    for c in (cohere.Client("none", base_url=f"http://{http}"), cohere.ClientV2("none", base_url=f"http://{http}")):
        def rerank(c=c):
            r = c.rerank(model="ranks", query="a", documents=texts)
            scores = [x.relevance_score for x in r.results]
            assert sorted(x.index for x in r.results) == [0, 1, 2] and scores == sorted(scores, reverse=True) and r.id
            few = c.rerank(model="ranks", query="a", documents=texts, top_n=2)
            assert [x.index for x in few.results] == [x.index for x in r.results[:2]]
            assert c.rerank(model="ranks", query="a", documents=texts, max_tokens_per_doc=4096).results if isinstance(c, cohere.ClientV2) else True
            e = raises(cohere.errors.NotFoundError, lambda: c.rerank(model="none", query="a", documents=texts))
            assert "none" in str(e.body)
            raises(cohere.errors.BadRequestError, lambda: c.rerank(model="tiny", query="a", documents=texts))
        rerank.__name__ = "rerank of " + type(c).__name__
        call(rerank)

    @call
    def documents_returned():
        r = cohere.Client("none", base_url=f"http://{http}").rerank(model="ranks", query="a", documents=[{"text": t} for t in texts], return_documents=True)
        assert [x.document.text for x in r.results] == [texts[x.index] for x in r.results]


def use_jina():
    import requests

    ask = lambda **o: requests.post(V1 + "/rerank", headers={"Authorization": "Bearer none"}, json={"model": "ranks", "query": "a", "documents": ["a", "b c"], **o})

    @call
    def rerank():
        r = ask(top_n=1, return_documents=True).json()
        assert len(r["results"]) == 1 and r["results"][0]["document"]["text"] in ("a", "b c") and r["model"] == "ranks", r
        assert "document" not in ask(return_documents=False).json()["results"][0]
        wrong = ask(documents=[])
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "documents"
        assert ask(truncation=True, truncate=True).status_code == 200


def use_langchain():
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
    from pydantic import BaseModel
    from typing import Literal

    brief = {ord(b): -100 for b in "\\ \t\r\n"}
    make = lambda **o: ChatOpenAI(model="tiny", base_url=V1, api_key="none", seed=3, max_retries=0, **{"max_tokens": 12, **o})
    model = make()

    @call
    def chat():
        r = model.invoke([SystemMessage("Be short."), HumanMessage("Hello")])
        assert r.content and r.usage_metadata["output_tokens"] == 12
        text = "".join(part.content for part in model.stream([SystemMessage("Be short."), HumanMessage("Hello")]))
        assert text == r.content
        history = [HumanMessage("a"), AIMessage("", tool_calls=[{"name": "light", "args": {"on": True}, "id": "call_1"}]), ToolMessage("done", tool_call_id="call_1")]
        assert model.bind_tools(TOOLS).invoke(history).response_metadata["finish_reason"]

    class Light(BaseModel):
        on: bool
        room: Literal["hall", "attic"]

    @call
    def structured():
        wide = make(max_tokens=200, logit_bias=brief)
        for method in ("json_schema", "function_calling"):
            assert isinstance(wide.with_structured_output(Light, method=method).invoke("a"), Light), method
        assert wide.bind_tools([Light], tool_choice="Light").invoke("a").tool_calls[0]["args"]

    @call
    def completions_and_embeddings():
        assert OpenAI(model="tiny", base_url=V1, api_key="none", max_tokens=5).invoke("abc") is not None
        e = OpenAIEmbeddings(model="vectors", base_url=V1, api_key="none", check_embedding_ctx_length=False)
        assert len(e.embed_documents(["a", "b"])) == 2 and len(e.embed_query("a")) > 3


def use_litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for prices
    import litellm

    litellm.suppress_debug_info = True
    for provider in ("openai", "hosted_vllm"):
        def texts(provider=provider):
            o = dict(model=f"{provider}/tiny", messages=HELLO, api_base=V1, api_key="none", max_tokens=12, seed=3)
            whole = litellm.completion(**o).choices[0].message.content
            events = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **o))
            assert "".join(c.delta.content or "" for e in events for c in e.choices) == whole
            made = litellm.completion(tools=TOOLS, tool_choice="required", **{**o, "max_tokens": 200, "logit_bias": {"92": -100}})
            assert json.loads(made.choices[0].message.tool_calls[0].function.arguments)
            assert len(litellm.embedding(model=f"{provider}/vectors", input=["a", "b"], api_base=V1, api_key="none").data) == 2
            raises(litellm.NotFoundError, lambda: litellm.completion(**{**o, "model": f"{provider}/none"}))
        texts.__name__ = "chats and vectors as " + provider
        call(texts)

    @call
    def ranks():
        for provider, base in (("cohere", f"http://{http}/v2/rerank"), ("jina_ai", V1), ("hosted_vllm", f"http://{http}")):
            r = litellm.rerank(model=f"{provider}/ranks", query="a", documents=["a", "b"], top_n=1, api_base=base, api_key="none")
            assert len(r.results) == 1, provider


try:
    {"openai": use_openai, "cohere": use_cohere, "jina": use_jina, "langchain": use_langchain, "litellm": use_litellm}[client]()
except ImportError as e:
    print(f"{client} is not installed: {e}")
    sys.exit(77)
failed = 0
for fn in calls:
    try:
        fn()
        print(f"{client}: {fn.__name__.replace('_', ' ')}: works")
    except Exception:
        failed = 1
        print(f"{client}: {fn.__name__.replace('_', ' ')}: FAILED\n{traceback.format_exc()}")
sys.exit(failed)
