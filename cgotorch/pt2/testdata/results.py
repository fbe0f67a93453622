"""Writes what torch.export writes for results of many forms, and what PyTorch returns: a line of JSON for each.

    results.py > results.jsonl

A member is one line of RESULTS: an expression of the tensors linear, relu and add.
"""

import collections
import dataclasses
import io
import json
import typing
import zipfile

import torch
from torch.utils import _pytree as pytree

Pair = collections.namedtuple("Pair", ["right", "left"])
pytree._register_namedtuple(Pair, serialized_type_name="Pair")


@dataclasses.dataclass
class Found:
    scores: torch.Tensor
    boxes: typing.Optional[torch.Tensor] = None
    kept: typing.Optional[torch.Tensor] = None


torch.export.register_dataclass(Found, serialized_type_name="Found")

RESULTS = """
linear
(linear, relu)
[relu, linear]
{"logits": linear, "aux": relu}
{"start_logits": linear, "end_logits": relu}
{"out": linear, "aux": relu, "a": add}
{"only": add}
(add, {"z": linear, "a": relu})
{"z": (linear, relu), "a": add}
{"z": {"b": linear, "a": relu}, "a": {"b": add}}
{"boxes": [{"left": linear, "far": relu}], "n": add}
{"a": linear, "none": None, "b": relu}
(None, linear, None, relu)
{"loss": None, "logits": linear}
{"count": 3, "logits": linear, "rate": 0.5, "kind": "x", "ok": True, "aux": relu}
{"rows": x.shape[0], "logits": linear}
{"b": linear, "a": linear}
(relu, relu, linear)
{"same": x, "other": linear}
{10: linear, 9: relu}
{"output1": linear, "output0": relu}
{"b c": linear, 'a"q': relu, "ü": add}
{"x": linear, "": relu}
collections.OrderedDict(z=linear, a=relu)
collections.defaultdict(list, {"z": linear, "a": relu})
Pair(linear, relu)
{"pair": Pair(linear, relu), "a": add}
Found(linear, relu)
Found(linear, None, relu)
Found(linear)
(linear, Found(relu, None, add))
{"found": Found(linear, relu), "a": add}
((linear, (relu,)), add)
[[linear], [relu, add]]
transformers.modeling_outputs.QuestionAnsweringModelOutput(start_logits=linear, end_logits=relu)
transformers.modeling_outputs.BaseModelOutputWithPooling(last_hidden_state=linear, pooler_output=relu, hidden_states=(add, linear))
""".strip().splitlines()


class Net(torch.nn.Module):
    def __init__(self, result):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.fc.load_state_dict({"weight": torch.eye(2), "bias": torch.tensor([1.0, -2.0])})
        self.c = torch.tensor([0.5, 1.0])
        self.result = result

    def forward(self, x):
        linear = self.fc(x)
        relu = torch.relu(linear)
        add = torch.add(relu, self.c, alpha=2)
        return self.result(x, linear, relu, add)


def name(path, place):
    """The name of a leaf: keys and fields as in an expression of Python, the first one bare."""
    if not any(isinstance(k, (pytree.MappingKey, pytree.GetAttrKey)) for k in path):
        return f"output{place}"
    text = ""
    for k in path:
        if isinstance(k, pytree.SequenceKey):
            text += f"[{k.idx}]"
        else:
            key = str(k.key if isinstance(k, pytree.MappingKey) else k.name)
            text += key if k is path[0] else f"[{json.dumps(key, ensure_ascii=False)}]"
    return text


def record(returns):
    scope = {"collections": collections, "Pair": Pair, "Found": Found}
    if "transformers" in returns:
        import transformers.modeling_outputs

        scope["transformers"] = transformers
    net = Net(eval(f"lambda x, linear, relu, add: {returns}", scope)).eval()
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    with torch.no_grad():
        leaves = [(path, v) for path, v in pytree.tree_flatten_with_path(net(x))[0] if isinstance(v, torch.Tensor)]
    file = io.BytesIO()
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("n", max=8)},)), file)
    with zipfile.ZipFile(file) as archive:
        entry = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        graph = json.loads(archive.read(entry))["graph_module"]
    return {
        "returns": returns,
        "out_spec": graph["module_call_graph"][0]["signature"]["out_spec"],
        "outputs": json.dumps(graph["graph"]["outputs"]),
        "named_tuples": json.dumps(graph["treespec_namedtuple_fields"]),
        "nodes": "".join(json.dumps(n | {"metadata": {}}) + ", " for n in graph["graph"]["nodes"] if "sym_size" in n["target"]),
        "names": [name(path, i) for i, (path, _) in enumerate(leaves)],
        "values": [v.flatten().tolist() for _, v in leaves],
    }


if __name__ == "__main__":
    for returns in RESULTS:
        print(json.dumps(record(returns), ensure_ascii=False))
