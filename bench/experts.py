#!/usr/bin/env python3
"""A mixture's tokens with experts in host memory, driven by the host: the peer of text/experts. Qwen3-30B-A3B's shapes.

What lies between two picks is one CUDA graph of Triton kernels: the experts of layer i-1, attention and router of
layer i. Its last kernel writes the 8 picks, each with the token's number, into pinned memory. The host spins on them,
looks them up in the layer's LRU, copies the missing experts on a copy stream, and launches the next graph behind an
event. The kernels read an expert through a table on the device from expert to slot, a row of which goes behind the
copies. If all hit, nothing is enqueued. No event guards a slot from being overwritten early: the host has seen this
token's picks of layer i, so all before them in the main stream has run, also the last reader of layer i's slots.

In the second form, "ahead", the next graph is enqueued before the picks are known, behind a wait on a word in pinned
memory, which the host sets if all hit, and else the copy stream behind the copies. --no-ahead leaves it out."""
import argparse, ctypes, faulthandler, functools, gc, os, random, time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages below torch's big CPU tensors are pinned faster
import torch
try:
    import triton, triton.language as tl
    jit = triton.jit
except ImportError:  # the CPU mode needs none
    class tl: constexpr = None
    jit = lambda f: f
class Cfg: L, D, H, KV, HD, E, I, K, V, S, eps, theta = 48, 2048, 32, 4, 128, 128, 768, 8, 151936, 512, 1e-6, 1e6
class Tiny: L, D, H, KV, HD, E, I, K, V, S, eps, theta = 3, 256, 4, 2, 32, 32, 256, 8, 512, 256, 1e-6, 1e6
DEV = "cuda"
def say(*a): print("PEER", *a, flush=True)
# ---- kernels: memory-bound products, a program's weights asked for all at once, in one shot ----
@jit
def k_embed(tok, emb, x, D: tl.constexpr):
    k = tl.arange(0, D)
    tl.store(x + k, tl.load(emb + tl.load(tok).to(tl.int64) * D + k).to(tl.float32))
@jit
def dot(w, x): return tl.sum(w.to(tl.float32) * x[None, :], 1)
@jit
def norm(x, K, eps): return tl.rsqrt(tl.sum(x * x, 0) / K + eps)
@jit
def k_mv(x, nw, w, out, eps, K: tl.constexpr, BN: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr):
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, K)
    wv, xv = tl.load(w + n[:, None] * K + k[None, :]), tl.load(x + k)
    r = norm(xv, K, eps) if NORM else 1.0  # its barrier stands behind all loads and before the product
    y = dot(wv, xv * tl.load(nw + k).to(tl.float32) if NORM else xv) * r
    tl.store(out + n, tl.load(out + n) + y if ADD else y)
@jit
def k_attn(qkv, qn, kn, cos, sin, kc, vc, out, step, ctx, scale, eps,
           H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BT: tl.constexpr):
    """one query head: q/k norm, rope, cache write (by a group's first head), attention over the live positions"""
    h, hd = tl.program_id(0), D // 2
    g, pos = h // (H // KV), ctx + tl.load(step)
    a, d = tl.arange(0, D // 2), tl.arange(0, D)
    c, s = tl.load(cos + pos * hd + a), tl.load(sin + pos * hd + a)
    q, k = qkv + h * D, qkv + (H + g) * D
    q1, q2, k1, k2 = tl.load(q + a), tl.load(q + hd + a), tl.load(k + a), tl.load(k + hd + a)
    v = tl.load(qkv + (H + KV + g) * D + d)
    r = tl.rsqrt((tl.sum(q1 * q1, 0) + tl.sum(q2 * q2, 0)) / D + eps) * scale
    q1, q2 = q1 * r * tl.load(qn + a).to(tl.float32), q2 * r * tl.load(qn + hd + a).to(tl.float32)
    r = tl.rsqrt((tl.sum(k1 * k1, 0) + tl.sum(k2 * k2, 0)) / D + eps)
    k1, k2 = k1 * r * tl.load(kn + a).to(tl.float32), k2 * r * tl.load(kn + hd + a).to(tl.float32)
    qa, qb, ka, kb = q1 * c - q2 * s, q2 * c + q1 * s, k1 * c - k2 * s, k2 * c + k1 * s
    if h % (H // KV) == 0:
        row = (pos * KV + g) * D
        tl.store(kc + row + a, ka.to(tl.bfloat16))
        tl.store(kc + row + hd + a, kb.to(tl.bfloat16))
        tl.store(vc + row + d, v.to(tl.bfloat16))
    m = tl.sum(qa * ka, 0) + tl.sum(qb * kb, 0)  # the token itself comes from registers
    l, acc = tl.exp(m - m), v
    for t0 in range(0, pos, BT):
        t = t0 + tl.arange(0, BT)
        row, live = ((t * KV + g) * D)[:, None], (t < pos)[:, None]
        kk1 = tl.load(kc + row + a[None, :], mask=live, other=0.0)
        kk2 = tl.load(kc + row + hd + a[None, :], mask=live, other=0.0)
        vv = tl.load(vc + row + d[None, :], mask=live, other=0.0).to(tl.float32)
        sc = tl.where(t < pos, dot(kk1, qa) + dot(kk2, qb), float("-inf"))
        mn = tl.maximum(m, tl.max(sc, 0))
        p, al = tl.exp(sc - mn), tl.exp(m - mn)
        l, acc, m = l * al + tl.sum(p, 0), acc * al + tl.sum(p[:, None] * vv, 0), mn
    tl.store(out + h * D + d, acc / l)
@jit
def k_topk(logits, forced, step, picks, pw, host, E: tl.constexpr, K: tl.constexpr):
    """top-k and softmax over the picked; a forced pick (>= 0) replaces its index; tagged picks go to the host"""
    e, j, st = tl.arange(0, E), tl.arange(0, K), tl.load(step)
    f, s = tl.load(forced + st * K + j), tl.load(logits + e)
    val, idx = tl.full([K], float("-inf"), tl.float32), tl.full([K], 0, tl.int32)
    for t in tl.static_range(K):
        v, a = tl.max(s, 0, return_indices=True)
        val, idx = tl.where(j == t, v, val), tl.where(j == t, a.to(tl.int32), idx)
        s = tl.where(e == a, float("-inf"), s)
    idx = tl.where(f >= 0, f, idx)
    tl.store(host + j, ((st + 1) << 10) | idx)
    tl.store(picks + j, idx)
    w = tl.exp(val - tl.max(val, 0))
    tl.store(pw + j, w / tl.sum(w, 0))
@jit
def k_up(x, nw, slots, table, picks, act, eps, D: tl.constexpr, I: tl.constexpr, BN: tl.constexpr):
    e, n, k = tl.program_id(1), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    at = slots + tl.load(table + tl.load(picks + e)).to(tl.int64) * (3 * I * D) + n[:, None] * D + k[None, :]
    gv, uv, xv = tl.load(at), tl.load(at + I * D), tl.load(x + k)
    r, xn = norm(xv, D, eps), xv * tl.load(nw + k).to(tl.float32)
    g, u = dot(gv, xn) * r, dot(uv, xn) * r
    tl.store(act + e * I + n, (g * tl.sigmoid(g) * u).to(tl.bfloat16))
@jit
def k_down(x, slots, table, picks, pw, act, D: tl.constexpr, I: tl.constexpr, K: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr):
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros([BN, BK], tl.float32)
    for e in tl.static_range(K):
        base = slots + tl.load(table + tl.load(picks + e)).to(tl.int64) * (3 * I * D) + 2 * I * D
        wt = tl.load(pw + e)
        for k0 in tl.static_range(0, I, BK):
            wv = tl.load(base + n[:, None] * I + (k0 + k)[None, :]).to(tl.float32)
            acc += wv * (tl.load(act + e * I + k0 + k[None, :] + n[:, None] * 0).to(tl.float32) * wt)
    tl.store(x + n, tl.load(x + n) + tl.sum(acc, 1))
@jit
def k_head(x, nw, w, pv, pi, eps, K: tl.constexpr, BN: tl.constexpr):
    b, k = tl.program_id(0), tl.arange(0, K)
    wv, xv = tl.load(w + (b * BN + tl.arange(0, BN))[:, None] * K + k[None, :]), tl.load(x + k)
    r = norm(xv, K, eps)
    v, a = tl.max(dot(wv, xv * tl.load(nw + k).to(tl.float32)) * r, 0, return_indices=True)
    tl.store(pv + b, v)
    tl.store(pi + b, b * BN + a)
@jit
def k_argmax(pv, pi, tok, step, N: tl.constexpr, B: tl.constexpr):
    n = tl.arange(0, B)
    v, a = tl.max(tl.load(pv + n, mask=n < N, other=float("-inf")), 0, return_indices=True)
    tl.store(tok, tl.load(pi + a))
    tl.store(step, tl.load(step) + 1)
# ---- the model's weights and buffers; its parts by kernels, or by torch's operations (CPU mode, and the check) ----
class Model:
    def __init__(m, c, dev, nslots, ctx, T, pin):
        m.c, m.ctx, m.EB, m.BH, A, R = c, ctx, 3 * c.I * c.D, 8, c.H * c.HD, range(c.L)
        W = lambda *s: torch.empty(*s, dtype=torch.bfloat16, device=dev).normal_(0, 0.02)
        one = lambda n: torch.ones(n, dtype=torch.bfloat16, device=dev)
        F, Z = (functools.partial(torch.zeros, dtype=t, device=dev) for t in (torch.float32, torch.int32))
        P = functools.partial(torch.zeros, dtype=torch.int32, pin_memory=pin)
        m.emb, m.head, m.nf, m.n1, m.n2 = W(c.V, c.D), W(c.V, c.D), one(c.D), [one(c.D) for _ in R], [one(c.D) for _ in R]
        m.qn, m.kn, m.wqkv = [one(c.HD) for _ in R], [one(c.HD) for _ in R], [W((c.H + 2 * c.KV) * c.HD, c.D) for _ in R]
        m.wo, m.wr = [W(c.D, A) for _ in R], [W(c.E, c.D) for _ in R]
        m.kc, m.vc = [W(c.S, c.KV, c.HD).mul_(50) for _ in R], [W(c.S, c.KV, c.HD).mul_(50) for _ in R]
        m.slots = [torch.empty(nslots, m.EB, dtype=torch.bfloat16, device=dev) for _ in R]
        ang = torch.arange(c.S).float()[:, None] * (c.theta ** (-torch.arange(0, c.HD, 2).float() / c.HD))[None, :]
        m.cos, m.sin = ang.cos().to(dev), ang.sin().to(dev)
        m.x, m.qkv, m.att, m.logits, m.pw = F(c.D), F((c.H + 2 * c.KV) * c.HD), F(A), F(c.E), F(c.K)
        m.act, m.pv, m.pi = W(c.K * c.I), F(c.V // m.BH), Z(c.V // m.BH)
        m.tok, m.step, m.picks, m.table, m.forced = Z(1), Z(1), Z(c.L, c.K), Z(c.L, c.E), Z(c.L, T, c.K)
        m.hpicks, m.htable, m.gate = P(c.L, c.K), P(c.L, c.E), P(c.L)  # these three are the host's, pinned
    def segment(m, ops, i):  # what lies between the picks of layer i-1 and those of layer i
        ops.embed(m) if i == 0 else ops.moe(m, i - 1)
        ops.attn(m, i) if i < m.c.L else ops.last(m)
class Kernels:
    def embed(m): k_embed[(1,)](m.tok, m.emb, m.x, m.c.D, num_warps=8)
    def attn(m, i):
        c = m.c
        k_mv[(m.qkv.numel() // 8,)](m.x, m.n1[i], m.wqkv[i], m.qkv, c.eps, c.D, 8, True, False)
        k_attn[(c.H,)](m.qkv, m.qn[i], m.kn[i], m.cos, m.sin, m.kc[i], m.vc[i], m.att, m.step, m.ctx,
                       c.HD ** -0.5, c.eps, c.H, c.KV, c.HD, 128, num_warps=8)
        k_mv[(c.D // 4,)](m.att, m.att, m.wo[i], m.x, c.eps, c.H * c.HD, 4, False, True)
        k_mv[(c.E,)](m.x, m.n2[i], m.wr[i], m.logits, c.eps, c.D, 1, True, False)
        k_topk[(1,)](m.logits, m.forced[i], m.step, m.picks[i], m.pw, m.hpicks[i], c.E, c.K, num_warps=1)
    def moe(m, i):
        c = m.c
        k_up[(c.I // 4, c.K)](m.x, m.n2[i], m.slots[i], m.table[i], m.picks[i], m.act, c.eps, c.D, c.I, 4)
        k_down[(c.D // 4,)](m.x, m.slots[i], m.table[i], m.picks[i], m.pw, m.act, c.D, c.I, c.K, 4, 256)
    def last(m):
        N = m.pv.numel()
        k_head[(N,)](m.x, m.nf, m.head, m.pv, m.pi, m.c.eps, m.c.D, m.BH)
        k_argmax[(1,)](m.pv, m.pi, m.tok, m.step, N, 1 << (N - 1).bit_length(), num_warps=16)
class Plain:
    def rms(m, x, w): return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + m.c.eps) * w.float()
    def embed(m): m.x.copy_(m.emb[int(m.tok)])
    def attn(m, i):
        c, h, st, rep = m.c, m.c.HD // 2, int(m.step), m.c.H // m.c.KV
        pos = m.ctx + st
        q, k, v = (m.wqkv[i].float() @ Plain.rms(m, m.x, m.n1[i])).view(-1, c.HD).split([c.H, c.KV, c.KV])
        rope = lambda t: torch.cat([t[:, :h] * m.cos[pos] - t[:, h:] * m.sin[pos],
                                    t[:, h:] * m.cos[pos] + t[:, :h] * m.sin[pos]], 1)
        q, k = rope(Plain.rms(m, q, m.qn[i])), rope(Plain.rms(m, k, m.kn[i]))
        kk = torch.cat([m.kc[i][:pos].float(), k[None]]).repeat_interleave(rep, 1)
        vv = torch.cat([m.vc[i][:pos].float(), v[None]]).repeat_interleave(rep, 1)
        p = torch.softmax(torch.einsum("hd,thd->ht", q, kk) * c.HD ** -0.5, 1)
        m.kc[i][pos], m.vc[i][pos] = k.bfloat16(), v.bfloat16()
        m.x += m.wo[i].float() @ torch.einsum("ht,thd->hd", p, vv).reshape(-1)
        val, idx = (m.wr[i].float() @ Plain.rms(m, m.x, m.n2[i])).topk(c.K)
        m.pw.copy_(val.softmax(0))
        m.picks[i] = torch.where(m.forced[i, st] >= 0, m.forced[i, st], idx.int())
        m.hpicks[i] = (((st + 1) << 10) | m.picks[i]).cpu()
    def moe(m, i):
        c, w = m.c, m.slots[i][m.table[i][m.picks[i].long()].long()].float()
        gu = w[:, :2 * c.I * c.D].view(c.K, 2 * c.I, c.D) @ Plain.rms(m, m.x, m.n2[i])
        act = (torch.nn.functional.silu(gu[:, :c.I]) * gu[:, c.I:]).bfloat16().float() * m.pw[:, None]
        m.x += torch.einsum("edi,ei->d", w[:, 2 * c.I * c.D:].view(c.K, c.D, c.I), act)
    def last(m):
        m.tok.copy_((m.head.float() @ Plain.rms(m, m.x, m.nf)).argmax())
        m.step += 1
# ---- the host's side ----
def make_host(c, gpu, share, limit):
    n, t0 = c.E * 3 * c.I * c.D, time.perf_counter()  # up to `share` blocks of a layer's experts, while time lasts
    def block(_):
        if gpu and time.perf_counter() - t0 > limit: return None
        b = torch.empty(n, dtype=torch.bfloat16)
        ctypes.memset(b.data_ptr(), 0, n * 2)
        return None if gpu and int(torch.cuda.cudart().cudaHostRegister(b.data_ptr(), n * 2, 0)) else b
    with ThreadPoolExecutor(8) as ex: blocks = [b for b in ex.map(block, range(min(share, c.L))) if b is not None]
    if not blocks: raise SystemExit("PEER no host block could be pinned")
    rnd = torch.empty(n, dtype=torch.bfloat16, device=DEV if gpu else "cpu")
    for b in blocks: b.copy_(rnd.normal_(0, 0.02))
    say(f"host blocks={len(blocks)} of {c.L} layers, GB={len(blocks) * n * 2 / 1e9:.1f} s={time.perf_counter() - t0:.1f}")
    return [blocks[i % len(blocks)].view(c.E, -1) for i in range(c.L)]
def lookup(d, picks):
    """touches the hits, then gives the missing the least recently used slots: [(expert, slot)]"""
    miss = [e for e in picks if e not in d]
    for e in picks:
        if e in d: d.move_to_end(e)
    for j, e in enumerate(miss):
        d[e] = s = d.popitem(False)[1]
        miss[j] = (e, s)
    return miss
def make_picks(c, lru, T, p, seed):
    rng, out = random.Random(seed), []  # p: a pick is of the `slots` most recently used of its layer, else another
    for i in range(c.L):
        d, rows = OrderedDict(lru[i]), []
        for _ in range(T):
            near, far, row = list(d), [e for e in range(c.E) if e not in d], []
            for _ in range(c.K):
                pool = near if (rng.random() < p or not far) else far
                row.append(pool.pop(rng.randrange(len(pool))))
            lookup(d, row)
            rows.append(row)
        out.append(rows)
    return torch.tensor(out, dtype=torch.int32)
class Driver:
    def __init__(u):  # the loop's few driver calls, past torch's dispatch; each returns 0 where all is well
        lib, vp, u64, u32 = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
        for mine, name, args in (
                ("copy", "cuMemcpyHtoDAsync_v2", [u64, vp, ctypes.c_size_t, vp]), ("launch", "cuGraphLaunch", [vp, vp]),
                ("event", "cuEventCreate", [vp, u32]), ("rec", "cuEventRecord", [vp, vp]),
                ("wait", "cuStreamWaitEvent", [vp, vp, u32]), ("gwait", "cuStreamWaitValue32_v2", [vp, u64, u32, u32]),
                ("gset", "cuStreamWriteValue32_v2", [vp, u64, u32, u32])):
            f = getattr(lib, name)
            f.argtypes, f.restype = args, ctypes.c_int
            setattr(u, mine, f)
def main(argv=None):
    ap = argparse.ArgumentParser()
    for name, typ, dflt in (("--slots", int, 0), ("--share", int, 16), ("--hits", str, "0.66,0.79,0.89,0.945,1.0"),
                            ("--warm", int, 16), ("--tokens", int, 48), ("--ctx", int, 96), ("--pin-seconds", float, 30),
                            ("--limit", float, 85)): ap.add_argument(name, type=typ, default=dflt)
    for name in ("--cpu", "--no-ahead"): ap.add_argument(name, action="store_true")
    a = ap.parse_args(argv)
    faulthandler.dump_traceback_later(a.limit, exit=True)  # never hangs beyond this
    t0, gpu = time.perf_counter(), not a.cpu
    c, dev = (Cfg, DEV) if gpu else (Tiny, "cpu")
    n, T, L, K = a.slots or (47 if c is Cfg else 12), a.warm + a.tokens, c.L, c.K
    assert K <= n <= c.E and a.ctx + T <= c.S and torch.manual_seed(1)
    m = Model(c, dev, n, a.ctx, T, gpu)
    host, EBY = make_host(c, gpu, a.share if gpu else L, a.pin_seconds), m.EB * 2
    for i in range(L):  # experts 0..n-1 fill the slots
        m.slots[i].copy_(host[i][:n])
        m.htable[i, :n] = torch.arange(n, dtype=torch.int32)
    m.table.copy_(m.htable)
    lru = [OrderedDict((e, e) for e in range(n)) for _ in range(L)]
    def clock():
        if gpu: torch.cuda.synchronize()
        return time.perf_counter()
    hrow, htab, hgate = [r.numpy() for r in m.hpicks], [r.numpy() for r in m.htable], m.gate.numpy()
    def prepare(p, seed):  # a run's picks; its first token is step 0, whose tag is 1
        m.forced.copy_(make_picks(c, lru, T, p, seed))
        m.step.zero_(), m.tok.fill_(1), m.hpicks.zero_(), m.gate.zero_(), clock()
    if gpu:
        u, main_s, copy_s, t1 = Driver(), torch.cuda.Stream(), torch.cuda.Stream(), clock()
        ms, cs, evs = main_s.cuda_stream, copy_s.cuda_stream, [ctypes.c_void_p() for _ in range(L)]
        torch.cuda.set_stream(main_s)
        assert not any(u.event(ctypes.byref(e), 2) for e in evs)
        evs, gatep = [e.value for e in evs], [m.gate.data_ptr() + 4 * i for i in range(L)]
        sbase, hbase, trow, hrowp = ([t.data_ptr() for t in ts] for ts in (m.slots, host, m.table, m.htable))
        for r in range(3):  # the copy engine's rate; the last of three counts
            t1 = clock()
            assert not any(u.copy(sbase[j % L] + j % 8 * EBY, hbase[j % L] + j % 8 * EBY, EBY, cs) for j in range(64))
            rate = 64 * EBY / (clock() - t1)
        say(f"bus GB/s={rate / 1e9:.1f} (64 copies of {EBY / 1e6:.2f} MB, one stream)")
        prepare(1.0, 5)  # builds the kernels, and checks them by a token against torch's own operations
        got = []
        for ops in (Plain, Kernels):
            m.step.zero_(), m.tok.fill_(1), m.hpicks.zero_()
            for i in range(L + 1): m.segment(ops, i)
            clock()
            got += [m.x.clone(), int(m.tok), m.hpicks.clone()]
        say(f"check rel={((got[3] - got[0]).norm() / got[0].norm()).item():.2e} token={got[1]},{got[4]} picks="
            f"{'same' if bool((got[2] == got[5]).all()) else 'DIFFER'} s={time.perf_counter() - t0:.1f}")
        def capture(segs):
            g = torch.cuda.CUDAGraph()
            g.capture_begin(capture_error_mode="thread_local")
            for i in segs: m.segment(Kernels, i)
            g.capture_end()
            return g
        graphs = [capture([i]) for i in range(L + 1)] + [capture(range(L + 1))]
        launch = [functools.partial(u.launch, g.raw_cuda_graph_exec(), ms) for g in graphs]
        prepare(1.0, 6)
        assert not any(launch[L + 1]() for _ in range(a.warm))
        t1 = clock()
        assert not any(launch[L + 1]() for _ in range(a.tokens))
        resident = (clock() - t1) * 1e3 / a.tokens
        say(f"resident graph ms={resident:.3f} (all hits, one graph a token, the host doesn't look)")
    else:
        launch, rate, resident = [functools.partial(m.segment, Plain, i) for i in range(L + 1)], 1e9, 0.0
    def token(tag, ahead):  # returns how many experts were missing
        base, missed, rc = tag << 10, 0, launch[0]() or 0
        for i in range(L):
            if ahead: rc |= u.gwait(ms, gatep[i], tag, 0) or launch[i + 1]()
            row, v, spins = hrow[i], (0,), 0
            while min(v) < base:  # every word carries the token's number: the stores' order doesn't matter
                v, spins = row.tolist(), spins + 1
                if rc or spins > 8_000_000: raise RuntimeError(f"no picks: layer {i}, token {tag}, error {rc}")
            miss = lookup(lru[i], [w & 1023 for w in v])
            if miss:
                missed += len(miss)
                tab = htab[i]
                for e, s in miss:
                    if gpu: rc |= u.copy(sbase[i] + s * EBY, hbase[i] + e * EBY, EBY, cs)
                    else: m.slots[i][s].copy_(host[i][e])
                    tab[e] = s
                if not gpu: m.table[i].copy_(m.htable[i])
                else: rc |= u.copy(trow[i], hrowp[i], c.E * 4, cs)
                if ahead: rc |= u.gset(cs, gatep[i], tag, 0)
                elif gpu: rc |= u.rec(evs[i], cs) | u.wait(ms, evs[i], 0)
            elif ahead: hgate[i] = tag
            if not ahead: rc |= launch[i + 1]() or 0
            if rc: raise RuntimeError(f"driver error {rc}: layer {i}, token {tag}")
        return missed
    def series(name, ahead):
        for j, p in enumerate(float(s) for s in a.hits.split(",")):
            prepare(p, 100 + j)
            gc.collect(), gc.disable()
            for t in range(a.warm): token(t + 1, ahead)
            t1 = clock()
            missed = sum(token(t + 1, ahead) for t in range(a.warm, T))
            took, mb = (clock() - t1) * 1e3 / a.tokens, missed * EBY / a.tokens / 1e6
            gc.enable()
            say(f"{name} target={p} hits={1 - missed / (a.tokens * L * K):.4f} ms={took:.3f} missed_MB={mb:.1f} "
                f"bus_ms={mb * 1e9 / rate:.3f} resident+bus_ms={resident + mb * 1e9 / rate:.3f}")
    series("loop", False)
    if gpu and not a.no_ahead:
        try: series("ahead", True)
        except Exception as ex:
            say(f"ahead failed: {ex!r}")
            hgate[:] = 1 << 20  # lets go what still waits
    clock()  # what the LRU says must be what table and slots hold
    bad = sum(int(m.table[i, e]) != s or not torch.equal(m.slots[i][s].cpu(), host[i][e])
              for i in {0, L // 2, L - 1} for e, s in list(lru[i].items())[-12:])
    say(f"slots wrong={bad} of {12 * len({0, L // 2, L - 1})} s={clock() - t0:.1f}")
    if c is Cfg: os._exit(0)  # unpinning takes long, the process's end is quick
if __name__ == "__main__":
    main()
