"""Writes testdata/chat/want.json.gz: what transformers makes of conversations with published chat templates; and
internal/jinja/testdata/want.json: what it makes of the small templates in snippets.txt beside that file.

Needs transformers 5.24.0 and jinja2 3.1.6. Equal runs give equal files. A folder of other templates, and a
file for the result, may be named:

    python cgotorch/text/tokenizer/makechat.py [templates want.json.gz]
"""
import datetime
import gzip
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

FOLDER = pathlib.Path(__file__).parent / "testdata" / "chat"
SNIPPETS = pathlib.Path(__file__).parent / "internal" / "jinja" / "testdata" / "snippets.txt"
NOW = datetime.datetime(2026, 3, 7, 8, 5, 9)
TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<unk>", "pad_token": "<pad>"}


class Clock(datetime.datetime):
    """The clock of strftime_now."""

    @classmethod
    def now(cls, tz=None):
        return NOW


def system(text):
    return {"role": "system", "content": text}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def answer(text, reasoning=None, calls=()):
    message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id, name, text):
    return {"role": "tool", "content": text, "tool_call_id": id, "name": name}


def tool(name, description, properties, required=(), **more):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters, **more}}


WEATHER = tool("get_weather", "Tells the weather.\nDegrees are \"Celsius\" & <b>integers</b>.", {
    "city": {"type": "string", "description": "A city, such as Zürich or 東京"},
    "days": {"type": "integer", "description": "Days ahead", "default": 1, "minimum": 0},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
}, ["city"])

PLAIN = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}

DEEP = tool("book.flight", "", {
    "route": {"type": "object", "description": "From and to", "properties": {"from": {"type": "string"}, "to": {"type": "string", "nullable": True}}, "required": ["from"]},
    "stops": {"type": "array", "description": "Places", "items": {"type": "string"}, "default": ["a", "b"]},
    "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None, "description": "At most"},
    "kind": {"type": ["string", "null"], "enum": ["one", "two"], "description": "It's 'quoted'"},
    "who": {"oneOf": [{"type": "string", "description": "A name"}, {"type": "integer"}]},
    "direct": {"type": "boolean", "default": False},
    "zone": {"type": "number", "default": 1.5},
}, ["route", "stops"], **{"return": {"type": "object", "description": "A booking"}})

TALK = [user("Hello! "), answer(" Hi, how are you?\n"), user("\n  Fine: ünïcödé, 漢字, 🙂, \u00a0 and <b>&amp;</b> 'quotes' \"too\".\t\n"), answer("Good."), user("Bye")]
ARGUMENTS = {"city": "Zürich <&> 'x'", "days": 3, "ratio": 0.5, "big": 1e21, "exact": True, "none": None, "list": [1, "two", {"three": 3.0}], "empty": {}}
CALLED = [user("Weather in Zürich?"), answer("", calls=[call("abcdefgh1", "get_weather", ARGUMENTS)]), result("abcdefgh1", "get_weather", '{"sky": "clear", "t": 21}')]
TWICE = [user("Weather in Rome and Oslo?"), answer("I look.", "Two cities.", [call("abcdefgh1", "get_weather", {"city": "Rome"}), call("abcdefgh2", "get_weather", {"city": "Oslo", "days": 2})]),
         result("abcdefgh1", "get_weather", "warm"), result("abcdefgh2", "get_weather", "cold\nwet"), answer("Rome is warm, Oslo is cold.", "Now I know."), user("Thanks"),
         answer("", calls=[call("abcdefgh3", "now", {})]), result("abcdefgh3", "now", "12:00")]
THOUGHT = [user("What is 2+2?"), answer("4", "\nTwo and two.\n"), user("And 3+3?"), answer("<think>\nThree and three.\n</think>\n\n6"), user("And 4+4?")]
DOCUMENTS = [{"title": "First", "text": "A text.", "doc_id": 1}, {"title": "Second", "text": "Größe\nand more"}]


def case(name, messages, tools=None, prompt=True, midst=False, **variables):
    return {"name": name, "messages": messages, "tools": tools, "prompt": prompt and not midst, "continue": midst, "variables": variables}


CASES = [
    case("one", [user("Hi")]),
    case("one without prompt", [user("Hi")], prompt=False),
    case("system", [system("  Be brief. \n"), user("Hi")]),
    case("turns", TALK),
    case("turns with system", [system("You are 'helpful' & <kind>.\n\nYes."), *TALK, answer("Bye!\n")], prompt=False),
    case("empty", [system(""), user(""), answer(""), user("")]),
    case("braces", [user("{{ x }} {% if y %} {# z #} \\n {%- raw %}"), answer("<|eos|><|bos|></s>")], prompt=False),
    case("tools", [user("Weather?")], [WEATHER, PLAIN]),
    case("tools with system", [system("Be brief."), user("Weather?"), answer("Where?"), user("Here")], [DEEP, WEATHER]),
    case("call", CALLED, [WEATHER]),
    case("call with system", [system("Be brief."), *CALLED, answer("Clear, 21 degrees.")], [WEATHER, PLAIN], False),
    case("calls", TWICE, [WEATHER, PLAIN]),
    case("call without tools", CALLED),
    case("call as text", [user("Weather?"), answer("", calls=[call("abcdefgh1", "get_weather", '{"city": "Rome"}')]), result("abcdefgh1", "get_weather", "warm")], [WEATHER]),
    case("call last", CALLED[:2], [WEATHER], False),
    case("thought", THOUGHT),
    case("thought last", [*THOUGHT, answer("8", "Four and four.")], prompt=False),
    case("thought and call", [user("Go"), answer("", "I must look.", [call("abcdefgh1", "now", {})]), result("abcdefgh1", "now", "12:00"), answer("Noon.", "Clear.")], [PLAIN], False),
    case("no thinking", [system("Be brief. /no_think"), *THOUGHT], enable_thinking=False, thinking=False),
    case("thinking", [user("Why? /think")], enable_thinking=True, thinking=True),
    case("effort", [{"role": "developer", "content": "Be brief."}, user("Hi")], [WEATHER], reasoning_effort="high", builtin_tools=["browser", "python"], model_identity="You are a test."),
    case("dates", [user("Hi")], [WEATHER], date_string="1 May 2030", tools_in_user_message=False, custom_tools=None),
    case("documents", [user("What?")], documents=DOCUMENTS),
    case("developer", [{"role": "developer", "content": "Be brief."}, user("Hi")]),
    case("late system", [user("Hi"), answer("Hello"), system("Be brief."), user("Go on")]),
    case("assistant first", [answer("Hello"), user("Hi")]),
    case("two users", [user("Hi", name="Ann"), user("Are you there?")]),
    case("continued", [system("Be brief."), user("Hi"), answer("Well, ")], midst=True),
    case("continued after thoughts", [user("Hi"), answer(" I say:\n", "Hm.")], [WEATHER], midst=True),
    case("continued, empty", [user("Hi"), answer("")], midst=True),
    case("strange role", [user("Hi"), {"role": "critic", "content": "Bad."}]),
]


def render(template, c):
    try:
        text, _ = chat_template_utils.render_jinja_template(
            conversations=[c["messages"]], tools=c["tools"], chat_template=template, add_generation_prompt=c["prompt"],
            continue_final_message=c["continue"], **{"documents": None, **TOKENS, **c["variables"]})
        return {"text": text[0]}
    except Exception as e:
        return {"error": str(e), "kind": type(e).__name__}


DATA = {"s": "Hello, Wörld!", "n": 7, "f": 2.5, "none": None, "yes": True, "list": [3, 1, 2], "words": ["b", "A", "c"],
        "d": {"b": 1, "a": {"x": [1, 2]}, "items": "own"}, "people": [{"name": "Bo", "age": 3}, {"name": "al", "age": 1}, {"name": "Cy"}],
        "big": 12345678901234567890, "html": "<b>&'\"</b>", "empty": "", "multi": "one\ntwo\n\nthree\n"}


def snippets():
    """The snippets stand between lines of ----."""
    wanted = []
    for source in SNIPPETS.read_text(encoding="utf-8").split("\n----\n"):
        try:
            wanted.append({"text": chat_template_utils._compile_jinja_template(source).render(**DATA)})
        except Exception as e:
            wanted.append({"error": str(e)})
    text = ",\n".join(json.dumps(w, ensure_ascii=False) for w in wanted)
    (SNIPPETS.parent / "want.json").write_text(f'{{"data": {json.dumps(DATA)}, "want": [\n{text}\n]}}\n', encoding="utf-8")
    print(len(wanted), "snippets,", sum("error" in w for w in wanted), "of them fail")


def main():
    chat_template_utils.datetime = Clock
    snippets()
    templates = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    to = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER / "want.json.gz"
    want = {}
    for path in sorted(templates.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        want[path.name] = [render(template, c) for c in CASES]
    text = json.dumps({"tokens": TOKENS, "cases": CASES, "want": want}, ensure_ascii=False)
    to.write_bytes(gzip.compress(text.encode(), mtime=0))
    kinds = {}
    for results in want.values():
        for r in results:
            kinds[r.get("kind", "text")] = kinds.get(r.get("kind", "text"), 0) + 1
    print(len(want), "templates,", len(CASES), "conversations:", kinds, to.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
