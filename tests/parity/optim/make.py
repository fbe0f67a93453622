"""Writes testdata/steps.json, schedules.json, scaler.json and averages.json: what torch.optim and torch.amp give.

    python make.py        # needs torch 2.11.0; runs on the CPU with one thread
"""

import json
import pathlib

import torch

STEPS = 20
HERE = pathlib.Path(__file__).parent / "testdata"

torch.set_num_threads(1)
draw = torch.Generator().manual_seed(20)


def tensor(*shape, low=-1.0, high=1.0):
    return torch.rand(shape, generator=draw) * (high - low) + low


# The parameters. The loss sum((p*a - t)^2) pulls each parameter p to t/a.
SHAPES = {"weight": (2, 3, 3, 3), "bias": (33,), "scale": (), "table": (5, 7)}
START = {n: tensor(*s) for n, s in SHAPES.items()}
FACTOR = {n: tensor(*s, low=0.5, high=1.5) for n, s in SHAPES.items()}
TARGET = {n: tensor(*s) for n, s in SHAPES.items()}

WEIGHTS, OTHERS = ["weight", "table"], ["bias", "scale"]

CASES = [
    dict(name="sgd", rule="sgd", lr=0.05),
    dict(name="sgd/momentum", rule="sgd", lr=0.05, momentum=0.9),
    dict(name="sgd/dampening", rule="sgd", lr=0.05, momentum=0.9, dampening=0.3),
    dict(name="sgd/nesterov", rule="sgd", lr=0.05, momentum=0.9, nesterov=True),
    dict(name="sgd/decay", rule="sgd", lr=0.05, weight_decay=0.01),
    dict(name="sgd/nesterov,decay", rule="sgd", lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    dict(name="sgd/groups", rule="sgd", lr=0.05, momentum=0.9, weight_decay=0.01, groups=True),
    dict(name="sgd/skipped", rule="sgd", lr=0.05, momentum=0.9, skipped=[0, 1, 5, 6, 7]),
    dict(name="sgd/clipped", rule="sgd", lr=0.05, momentum=0.9, clip=2.0),
    dict(name="sgd/scaled", rule="sgd", lr=0.05, momentum=0.9, scales=[1 / (1 + i) for i in range(STEPS)]),
    dict(name="sgd/bfloat16", rule="sgd", lr=0.05, momentum=0.9, weight_decay=0.01, dtype="bfloat16"),
    dict(name="adam", rule="adam", lr=0.02),
    dict(name="adam/decay", rule="adam", lr=0.02, weight_decay=0.1),
    dict(name="adam/amsgrad", rule="adam", lr=0.02, amsgrad=True),
    dict(name="adam/betas,eps", rule="adam", lr=0.02, betas=[0.5, 0.9], eps=1e-3),
    dict(name="adam/skipped", rule="adam", lr=0.02, skipped=[0, 1, 5, 6, 7]),
    dict(name="adam/bfloat16", rule="adam", lr=0.02, dtype="bfloat16"),
    dict(name="adamw", rule="adamw", lr=0.02),
    dict(name="adamw/decay,amsgrad", rule="adamw", lr=0.02, weight_decay=0.3, amsgrad=True),
    dict(name="adamw/no decay", rule="adamw", lr=0.02, weight_decay=0.0),
    dict(name="adamw/groups", rule="adamw", lr=0.02, weight_decay=0.3, groups=True),
]


def problem(dtype=torch.float32):
    """Parameters, and the part of the loss that each of them has."""
    params, losses = {}, {}
    for name, start in START.items():
        p = start.to(dtype, memory_format=torch.channels_last) if start.dim() == 4 else start.to(dtype, copy=True)
        params[name] = p.clone().requires_grad_()
        a, t = FACTOR[name].to(dtype), TARGET[name].to(dtype)
        losses[name] = lambda p=params[name], a=a, t=t: torch.square(p * a - t).sum()
    return params, losses


def run(case, **implementation):
    params, losses = problem(getattr(torch, case.get("dtype", "float32")))
    groups = [{"params": list(params.values())}]
    if case.get("groups"):
        groups = [
            {"params": [params[n] for n in WEIGHTS]},
            {"params": [params[n] for n in OTHERS], "weight_decay": 0.0, "lr": 2 * case["lr"]},
        ]
    rule = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[case["rule"]]
    options = {k: v for k, v in case.items() if k not in ("name", "rule", "groups", "skipped", "clip", "scales", "dtype")}
    opt = rule(groups, **options, **implementation)
    rates = [g["lr"] for g in opt.param_groups]
    norms = []
    for step in range(STEPS):
        opt.zero_grad()
        sum(l() for n, l in losses.items() if n != "table" or step not in case.get("skipped", [])).backward()
        if "clip" in case:
            norms.append(torch.nn.utils.clip_grad_norm_(params.values(), case["clip"]).item())
        if "scales" in case:
            for group, rate in zip(opt.param_groups, rates):
                group["lr"] = rate * case["scales"][step]
        opt.step()
    return {n: p.detach() for n, p in params.items()}, norms


def numbers(t):
    """Enough digits to give the same float32 again."""
    return [float(f"{v:.9g}") for v in t.float().flatten().tolist()]


def steps():
    out = {
        "steps": STEPS,
        "params": [
            {"name": n, "shape": list(s), "start": numbers(START[n]), "factor": numbers(FACTOR[n]), "target": numbers(TARGET[n])}
            for n, s in SHAPES.items()
        ],
        "cases": [],
    }
    for case in CASES:
        foreach, norms = run(case, foreach=True)
        loop, _ = run(case, foreach=False)
        # The loop is PyTorch's default on the CPU. In bfloat16 foreach rounds a factor that the loop does
        # not round.
        assert "dtype" in case or all(torch.equal(foreach[n], loop[n]) for n in SHAPES), case["name"]
        # torch.optim.SGD(fused=True) fails if a parameter gets its first gradient later than another
        # parameter. On the CPU, SGD(fused=True) gives wrong results in bfloat16 and float16 for 16
        # elements and more.
        fused = None if case["name"] in ("sgd/skipped", "sgd/bfloat16") else run(case, fused=True)[0]
        limit = 0.1 if "dtype" in case else 1e-5
        assert fused is None or all((fused[n] - foreach[n]).abs().max() < limit for n in SHAPES), case["name"]
        out["cases"].append({
            **case,
            "norms": norms,
            "foreach": {n: numbers(p) for n, p in foreach.items()},
            "fused": fused and {n: numbers(p) for n, p in fused.items()},
        })
    return out


# overflows are the steps in which the gradient of the parameter table is infinite. SGD's first step
# must not be one of them. After such a first step, PyTorch's fused SGD reads memory that was never
# written.
SCALERS = [
    dict(name="sgd", rules=["sgd"], overflows=[3, 4, 11], unscale=False, clip=0.0),
    dict(name="adam", rules=["adam"], overflows=[0, 5, 6, 13], unscale=False, clip=0.0),
    dict(name="adamw/clipped", rules=["adamw"], overflows=[0, 1, 9], unscale=True, clip=1.5),
    dict(name="sgd/clipped", rules=["sgd"], overflows=[3, 4, 11], unscale=True, clip=1.5),
    dict(name="two", rules=["sgd", "adamw"], overflows=[2, 8], unscale=False, clip=0.0),
]
RULES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3, amsgrad=True, fused=True),
}
# The scale is not a power of 2, so that a division by the scale rounds.
SCALING = dict(init_scale=1000.0, growth_factor=3.0, backoff_factor=0.3, growth_interval=3)


def scaled(case):
    params, losses = problem()
    parts = [list(params)] if len(case["rules"]) == 1 else [WEIGHTS, OTHERS]
    opts = [RULES[rule]([params[n] for n in part]) for rule, part in zip(case["rules"], parts)]
    scaler = torch.amp.GradScaler("cpu", **SCALING)
    factors, growth = [], []
    for step in range(STEPS):
        for opt in opts:
            opt.zero_grad()
        loss = sum(l() * (torch.inf if n == "table" and step in case["overflows"] else 1.0) for n, l in losses.items())
        scaler.scale(loss).backward()
        for opt, part in zip(opts, parts):
            if case["unscale"]:
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_([params[n] for n in part], case["clip"])
            scaler.step(opt)
        scaler.update()
        factors.append(scaler.get_scale())
        growth.append(scaler._get_growth_tracker())
    return {**case, **SCALING, "factors": factors, "growth": growth, "params": {n: numbers(p.detach()) for n, p in params.items()}}


def averages():
    params, losses = problem()
    opt = RULES["sgd"](list(params.values()))
    means = [p.detach().clone() for p in params.values()]
    update = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    for step in range(STEPS):
        opt.zero_grad()
        sum(l() for l in losses.values()).backward()
        opt.step()
        update(means, [p.detach() for p in params.values()], step)
    return {"decay": 0.9, "averages": {n: numbers(m) for n, m in zip(params, means)}}


def schedules():
    sched = torch.optim.lr_scheduler

    def factors(make, count):
        # The learning rate is 1, so that later rates equal the factors.
        opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        s = make(opt)
        values = []
        for i in range(count):
            values.append(opt.param_groups[0]["lr"])
            opt.step()
            if i + 1 < count:
                s.step()
        return values

    def warm(opt, steps, start, then):
        return sched.SequentialLR(opt, [sched.LinearLR(opt, start, total_iters=steps), then], [steps])

    return {
        "step": factors(lambda o: sched.StepLR(o, 5, 0.3), 23),
        "multistep": factors(lambda o: sched.MultiStepLR(o, [3, 4, 11], 0.2), 23),
        "cosine": factors(lambda o: sched.CosineAnnealingLR(o, 20), 21),
        "cosine floor": factors(lambda o: sched.CosineAnnealingLR(o, 20, 0.05), 21),
        "one cycle": factors(lambda o: sched.OneCycleLR(o, 1.0, total_steps=23, cycle_momentum=False), 23),
        "one cycle linear": factors(
            lambda o: sched.OneCycleLR(o, 1.0, total_steps=40, pct_start=0.45, anneal_strategy="linear", div_factor=10.0, final_div_factor=50.0, cycle_momentum=False), 40),
        "one cycle short": factors(lambda o: sched.OneCycleLR(o, 1.0, total_steps=3, cycle_momentum=False), 3),
        "warm step": factors(lambda o: warm(o, 4, 0.1, sched.StepLR(o, 5, 0.3)), 23),
        "warm cosine": factors(lambda o: warm(o, 4, 0.01, sched.CosineAnnealingLR(o, 16)), 21),
    }


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, made in ("steps", steps()), ("schedules", schedules()), ("scaler", [scaled(c) for c in SCALERS]), ("averages", averages()):
        (HERE / f"{name}.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")
