"""Cases with LoRA adapters inside Megatron checkpoints (group lora): torch_dist and one file a rank, names of Megatron-Bridge and of mcore-bridge.

The adapters are made for the Hugging Face projections, folded there in float64 (expected), and then laid out as the frameworks store them:
A of a fused layer is shared by its projections, B's rows lie as the fused weight's do (linear_qkv: query group by query group; linear_fc1:
[gate; up], of which a rank has [gate_i; up_i]). Which dimension tensor-parallel ranks cut:
  Megatron-Bridge (src/megatron/bridge/peft/utils.py, ParallelLinearAdapter): A its rank, beside row-parallel layers its inputs; B its rows.
  mcore-bridge (src/mcore_bridge/tuners/lora.py, LoraParallelLinear): B its rows, or beside row-parallel layers A its inputs; in torch_dist
  B of linear_fc1 stays in the order of the ranks.
torch_dist is written from its layout (a DCP folder: a pickled Metadata, and each chunk a torch.save of its own), which needs no Megatron.
"""
import argparse
import io
import itertools
import pickle
import re

from tiny_models import *

import megatron_lib as megatron
import torch.distributed.checkpoint.filesystem as dcp_files
import torch.distributed.checkpoint.metadata as dcp

RANK = 4
LORA = r"(?<![/\w-])lora"
COLUMN, ROW = ("linear_qkv", "linear_fc1"), ("linear_proj", "linear_fc2")


class Model:
    """A tiny model, an adapter on its projections, and both as Megatron names them, layer by layer, unsharded."""

    def __init__(self, family="llama", seed=1, scale=2.0, rank=RANK, shared_fc2=False, **config):
        self.config = megatron.hf_config(family, **config)
        self.arch = megatron.arch(self.config)
        self.scale, self.rank, self.shared_fc2 = scale, rank, shared_fc2
        self.gen = torch.Generator().manual_seed(seed)
        import tempfile
        with tempfile.TemporaryDirectory() as tmp:
            names = megatron.save_hf(megatron.hf_model(self.config, seed, torch.float32), tmp)
        self.base = {name: exact(t.shape, self.gen) for name, t in sorted(names.items())}
        self.adapter, self.stored = {}, {}
        for layer in range(self.arch.L):
            self.adapt_layer(f"model.layers.{layer}.", f"decoder.layers.{layer}.")
        self.full = megatron.hf_to_megatron(self.base, self.config)

    def matrix(self, rows, columns):
        return exact((rows, columns), self.gen)

    def pair(self, module, projections, rows=lambda *b: torch.cat(b), a=None, b=None):
        """One stored pair for the projections that share its A."""
        weights = [self.base[p + ".weight"] for p in projections]
        a = self.matrix(self.rank, weights[0].shape[1]) if a is None else a
        bs = [self.matrix(w.shape[0], self.rank) for w in weights] if b is None else [b]
        for projection, b in zip(projections, bs):
            self.adapter[projection] = (a, b)
        self.stored[module] = (a, rows(*bs))

    def adapt_layer(self, hf, mega):
        at, arch = hf + "self_attn.", self.arch
        self.pair(mega + "self_attention.linear_qkv", [at + f"{x}_proj" for x in "qkv"], lambda q, k, v: megatron.interleave(q, k, v, arch))
        self.pair(mega + "self_attention.linear_proj", [at + "o_proj"])
        if not arch.E:
            self.pair(mega + "mlp.linear_fc1", [hf + "mlp.gate_proj", hf + "mlp.up_proj"])
            self.pair(mega + "mlp.linear_fc2", [hf + "mlp.down_proj"])
            return
        fc2 = (self.matrix(self.rank, arch.f_moe), self.matrix(arch.h, self.rank)) if self.shared_fc2 else (None, None)
        for e in range(arch.E):
            hf_e, mega_e = f"{hf}mlp.experts.{e}.", f"{mega}mlp.experts.local_experts.{e}."
            self.pair(mega_e + "linear_fc1", [hf_e + "gate_proj", hf_e + "up_proj"])
            self.pair(mega_e + "linear_fc2", [hf_e + "down_proj"], a=fc2[0], b=fc2[1])

    def folded(self):
        out = dict(self.base)
        for module, (a, b) in self.adapter.items():
            update = self.scale * (b.double() @ a.double())
            out[module + ".weight"] = (out[module + ".weight"].double() + update).float()
        return out

    def peft(self):
        return {f"base_model.model.{m}.lora_{x}.weight": t for m, pair in self.adapter.items() for x, t in zip("AB", pair)}

    def named(self, bridge=True):
        """The stored pairs by name: the last two elements of a module's name are kept."""
        a, b = ("adapter.linear_in.weight", "adapter.linear_out.weight") if bridge else ("lora_A.default.weight", "lora_B.default.weight")
        return {f"{m}.{x}": t for m, pair in self.stored.items() for x, t in zip((a, b), pair)}


def module_of(name):
    return next((part for part in name.split(".") if part in COLUMN + ROW), "")


def cut_dim(name):
    """The dimension that tensor-parallel ranks cut; none for what they all have."""
    module = module_of(name)
    if ".adapter." in name:
        return 1 if name.endswith("linear_in.weight") and module in ROW else 0
    if ".lora_A." in name:
        return 1 if module in ROW else None
    if ".lora_B." in name:
        return 0 if module in COLUMN else None
    if name.endswith((".weight",)) and (module in COLUMN or "word_embeddings" in name or "output_layer" in name):
        return 0
    return 1 if module in ROW else None


def of_rank(name, full, rank, size):
    dim = cut_dim(name)
    if size == 1 or dim is None:
        return full
    if module_of(name) == "linear_fc1" and dim == 0 and not name.endswith("linear_in.weight"):
        gate, up = full.chunk(2)
        return torch.cat([gate.chunk(size)[rank], up.chunk(size)[rank]])
    return full.chunk(size, dim)[rank]


# ---- torch_dist ----------------------------------------------------------------------------------------------------

def torch_dist_names(tensors):
    """Local-spec names as torch_dist files have them: norms under the layer behind them, experts by number 0, 1 … of one tensor."""
    out = {}
    for name, t in tensors.items():
        name = name.replace("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight")
        name = name.replace("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight")
        out[name.replace("mlp.experts.local_experts.", "mlp.experts.experts.")] = t
    return out


def stacked(tensors, mark):
    """`…mark.0.rest`, `…mark.1.rest` … as one tensor `…mark.rest`."""
    out, stacks = {}, {}
    for name, t in tensors.items():
        head, found, tail = name.partition(mark + ".")
        number, _, rest = tail.partition(".")
        if found and number.isdigit():
            stacks.setdefault(head + found + rest, {})[int(number)] = t
        else:
            out[name] = t
    out.update({name: torch.stack([by[i] for i in sorted(by)]) for name, by in stacks.items()})
    return out


def chunks_of(name, t, tp):
    """Boxes of a regular grid: every layer and expert apart, tensor-parallel slices along theirs; [gate; up] halves are cut apart."""
    parts = [1] * t.dim()
    lead = t.dim() - (1 if name.endswith(("norm.weight", "norm_weight")) else 2)
    for d in range(lead):
        parts[d] = t.shape[d]
    dim = cut_dim(name) if not name.endswith("norm_weight") else None
    if dim is not None:
        parts[lead + dim] = tp * (2 if module_of(name) == "linear_fc1" and dim == 0 and "linear_in" not in name and ".lora_" not in name else 1)
    steps = [n // p for n, p in zip(t.shape, parts)]
    for index in itertools.product(*(range(p) for p in parts)):
        start = [i * s for i, s in zip(index, steps)]
        yield start, steps, t[tuple(slice(a, a + s) for a, s in zip(start, steps))].clone().contiguous()


def write_torch_dist(folder, tensors, tp, common=None):
    folder.mkdir(parents=True)
    metadata, storage, files = {}, {}, {}
    for name, t in tensors.items():
        chunks = []
        for number, (start, size, data) in enumerate(chunks_of(name, t, tp)):
            file = files.setdefault(f"__{number % tp}_0.distcp", io.BytesIO())
            begin = file.tell()
            one = io.BytesIO()
            torch.save(data, one)
            file.write(one.getvalue())
            chunks.append(dcp.ChunkStorageMetadata(offsets=torch.Size(start), sizes=torch.Size(size)))
            storage[dcp.MetadataIndex(name, torch.Size(start), number)] = dcp_files._StorageInfo(
                f"__{number % tp}_0.distcp", begin, file.tell() - begin)
        metadata[name] = dcp.TensorStorageMetadata(dcp.TensorProperties(dtype=t.dtype), t.size(), chunks)
    for name, file in files.items():
        (folder / name).write_bytes(file.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(dcp.Metadata(state_dict_metadata=metadata, storage_data=storage)))
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}))
    torch.save({"iteration": 10, "checkpoint_version": 3.0, **(common or {})}, folder / "common.pt")


def bridge_settings(folder, alpha, dim):
    """What Megatron-Bridge's run_config.yaml says of adapters, among the rest."""
    (folder / "run_config.yaml").write_text(f"""checkpoint:
  alpha: 1
  save: /checkpoints
model:
  _target_: megatron.bridge.models.LlamaModelProvider
  hidden_size: 16
peft:
  _target_: megatron.bridge.peft.lora.LoRA
  a2a_experimental: false
  alpha: {alpha}
  dim: {dim}
  dropout: 0.0
  target_modules:
  - linear_qkv
  - linear_proj
train:
  alpha: 3
""")


def args(model, tp=1, pp=1, ep=1, **more):
    a = model.arch
    return argparse.Namespace(num_layers=a.L, hidden_size=a.h, num_attention_heads=a.nq, num_query_groups=a.ng, swiglu=True,
                              tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
                              expert_tensor_parallel_size=None, num_experts=a.E, padded_vocab_size=a.V, apply_layernorm_1p=False,
                              untie_embeddings_and_output_weights=True, **more)


# ---- one file a rank -------------------------------------------------------------------------------------------------

def local_name(name, first_layer, first_expert):
    """Numbers as a rank counts them."""
    def shifted(mark, first, name):
        return re.sub(re.escape(mark) + r"\.(\d+)", lambda m: f"{mark}.{int(m[1]) - first}", name)
    return shifted("local_experts", first_expert, shifted("decoder.layers", first_layer, name))


def write_ranks(folder, tensors, model, tp=1, pp=1, ep=1, rename=lambda name: name, **more):
    layers, experts = model.arch.L // pp, (model.arch.E or ep) // ep
    for p, t, e in itertools.product(range(pp), range(tp), range(ep)):
        state = {}
        for name, full in tensors.items():
            layer, expert = (re.search(mark + r"\.(\d+)", name) for mark in ("layers", "local_experts"))
            stage = int(layer[1]) // layers if layer else pp - 1 if name.startswith(("output_layer", "decoder.final")) else 0
            if stage != p or (expert and int(expert[1]) // experts != e):
                continue
            state[rename(local_name(name, p * layers, e * experts))] = of_rank(name, full, t, tp).clone().contiguous()
        sub = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "") + (f"_{e:03d}" if ep > 1 else "")
        (folder / sub).mkdir(parents=True)
        torch.save({"args": args(model, tp, pp, ep, **more), "checkpoint_version": 3.0, "iteration": 10, "model": state},
                   folder / sub / "model_optim_rng.pt")


# ---- cases -------------------------------------------------------------------------------------------------------------

CLASSES = {"llama": "LlamaForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "phi3": "Phi3ForCausalLM"}


def start(g, name, model, model_type=None):
    f = g.start(name)
    (f / "input/hf").mkdir(parents=True)
    config = {**json.loads(model.config.to_json_string(use_diff=False)), "dtype": "float32"}
    config["model_type"] = model_type or config["model_type"]
    config["architectures"] = [CLASSES[config["model_type"]]]
    (f / "input/hf/config.json").write_text(json.dumps(config, indent=1))
    (f / "input/run").mkdir()
    (f / "input/run/latest_checkpointed_iteration.txt").write_text("10")
    return f, f / "input/run/iter_0000010"


def expectations(f, model, alpha, **json_has):
    save_tensors(model.base, f / "expected/base.safetensors")
    save_tensors(model.folded(), f / "expected/folded.safetensors")
    save_tensors(model.peft(), f / "expected/adapter.safetensors")
    has = {"adapter_config.json": {"peft_type": "LORA", "r": model.rank, "lora_alpha": alpha, **json_has}}
    adapter = {"kind": "adapter", "tensors": "expected/adapter.safetensors", "json_has": has}
    return [{"dir": "{out}/model", "tensors": "expected/base.safetensors", "absent": ["adapter_*"]},
            {"dir": "{out}/model/lora_adapter", **adapter}, {"dir": "{out}/adapter", **adapter},
            {"dir": "{out}/folded", "tensors": "expected/folded.safetensors", "absent": ["adapter_*", "lora_adapter"]}]


def call(command, target, *more, **kw):
    return step(command, "--local-dir", "{case}/input/run", "--hf-config", "{case}/input/hf", "--target-dir", "{out}/" + target, *more, **kw)


def all_ways(*more):
    return [call("merge", "model", *more, says=[LORA]), call("merge", "folded", "--lora", "fold", *more, says=[LORA]),
            call("extract-lora", "adapter", *more)]


def check(*says):
    return step("check", "--local-dir", "{case}/input/run", says=[LORA, *says])


def fused_experts(tensors, arch):
    """Each layer's experts in two tensors, as some folders have them."""
    out = {name: t for name, t in tensors.items() if ".experts." not in name}
    for layer in range(arch.L):
        p = f"model.layers.{layer}.mlp.experts."
        out[p + "gate_up_proj"] = torch.stack([torch.cat([tensors[f"{p}{e}.{x}_proj.weight"] for x in ("gate", "up")]) for e in range(arch.E)])
        out[p + "down_proj"] = torch.stack([tensors[f"{p}{e}.down_proj.weight"] for e in range(arch.E)])
    return out


TARGETS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def torch_dist(g, want):
    if want("megatron_torch_dist_stacked"):
        m = Model()
        f, run = start(g, "megatron_torch_dist_stacked", m)
        write_torch_dist(run, stacked(torch_dist_names({**m.full, **m.named()}), "decoder.layers"), tp=2)
        bridge_settings(run, 8, RANK)
        g.finish(f, "Megatron-Bridge LoRA in torch_dist, layers stacked, saved by TP 2: fused qkv and fc1 adapters become q, k, v, gate and up ones; alpha from run_config.yaml",
                 [check("rank 4", "alpha 8", "linear_fc1"), *all_ways(), call("merge", "dropped", "--lora", "drop", says=["dropped"])],
                 [*expectations(f, m, 8, target_modules=TARGETS), {"dir": "{out}/dropped", "tensors": "expected/base.safetensors", "absent": ["lora_adapter"]}],
                 np=[1, 2, 3])

    if want("megatron_torch_dist_adapter_alone"):
        m = Model(seed=11)
        f, run = start(g, "megatron_torch_dist_adapter_alone", m)
        write_torch_dist(run, stacked(torch_dist_names(m.named()), "decoder.layers"), tp=2)
        bridge_settings(run, 8, RANK)
        save_tensors(m.base, f / "input/hf/model.safetensors")
        base, beside, alone, folded = expectations(f, m, 8, target_modules=TARGETS)
        fill = ["--fill-missing-from", "{case}/input/hf"]
        g.finish(f, "what Megatron-Bridge saves of a LoRA run, adapters and no base weights: extract-lora needs none; merge takes them from the base model's folder, else stops",
                 [check("rank 4", "alpha 8"), call("extract-lora", "adapter"), call("merge", "none", exit=3, says=["--fill-missing-from"]),
                  call("merge", "model", *fill), call("merge", "folded", "--lora", "fold", *fill)], [base, beside, alone, folded], ["{out}/none"], np=[1, 2, 3])

    if want("megatron_torch_dist_canonical"):
        m = Model(seed=2)
        for layer in range(m.arch.L):
            for mega, hf, parts in (("self_attention.linear_qkv", "self_attn", ("q", "k", "v")), ("mlp.linear_fc1", "mlp", ("gate", "up"))):
                del m.stored[f"decoder.layers.{layer}.{mega}"]
                for part in parts:
                    projection = f"model.layers.{layer}.{hf}.{part}_proj"
                    a, b = m.matrix(RANK, m.arch.h), m.adapter[projection][1]
                    m.adapter[projection] = (a, b)
                    m.stored[f"decoder.layers.{layer}.{mega}.adapter.adapter_{part}"] = (a, b)
        f, run = start(g, "megatron_torch_dist_canonical", m)
        names = {n.replace(".adapter.linear_", ".linear_") if ".adapter_" in n else n: t for n, t in m.named().items()}
        write_torch_dist(run, stacked(torch_dist_names({**m.full, **names}), "decoder.layers"), tp=1)
        bridge_settings(run, 8, RANK)
        g.finish(f, "Megatron-Bridge's canonical LoRA: a pair for each of q, k, v, gate and up beside the fused layers",
                 [check("rank 4", "alpha 8"), *all_ways()], expectations(f, m, 8, target_modules=TARGETS))

    if want("megatron_torch_dist_swift"):
        m = Model(seed=3, scale=4.0)
        f, run = start(g, "megatron_torch_dist_swift", m)
        stored = m.named(bridge=False)
        for name, b in stored.items():
            if "linear_fc1.lora_B" in name:
                stored[name] = torch.cat([of_rank(name, b, rank, 2) for rank in range(2)])
        write_torch_dist(run, stacked(torch_dist_names({**m.full, **stored}), "decoder.layers"), tp=2, common={"args": args(m, tp=2)})
        (f / "input/run/args.json").write_text(json.dumps({"tuner_type": "lora", "lora_rank": RANK, "lora_alpha": 8, "use_rslora": True}))
        g.finish(f, "ms-swift LoRA in torch_dist, saved by TP 2: rows of fc1's B are in the order of the ranks; alpha and rsLoRA from args.json",
                 [check("rank 4", "alpha 8"), *all_ways()], expectations(f, m, 8, use_rslora=True))

    if want("megatron_torch_dist_experts"):
        m = Model("qwen3_moe", seed=4, shared_fc2=True)
        f, run = start(g, "megatron_torch_dist_experts", m)
        tensors = stacked(stacked(torch_dist_names({**m.full, **m.named()}), "experts.experts"), "decoder.layers")
        for name in [n for n in tensors if "experts.experts.linear_fc2.adapter" in n]:
            tensors[name] = tensors[name][:, 0].clone()     # one pair for all experts of a layer
        write_torch_dist(run, tensors, tp=1)
        bridge_settings(run, 8, RANK)
        expect, fused = expectations(f, m, 8), fused_experts(m.folded(), m.arch)
        save_tensors(fused, f / "expected/fused.safetensors")
        save_tensors({name: torch.zeros_like(t) for name, t in fused.items()}, f / "input/like/model.safetensors")
        shutil.copy(f / "input/hf/config.json", f / "input/like/config.json")
        g.finish(f, "Megatron-Bridge LoRA on experts in torch_dist: a pair for each expert ([layers, experts, rank, in]) on fc1, one for all on fc2; folded into fused experts with --like",
                 [check("rank 4", "alpha 8"), *all_ways(), call("merge", "fused", "--lora", "fold", "--like", "{case}/input/like")],
                 [*expect, {"dir": "{out}/fused", "tensors": "expected/fused.safetensors"}])

    if want("megatron_torch_dist_fused_published"):
        m = Model(seed=5)
        adapter, base = {}, {}
        for name, t in m.base.items():
            if not re.search(r"\.(q|k|v|gate|up)_proj\.", name):
                base[name] = t
        adapter.update({n: p for n, p in m.adapter.items() if n.endswith(("o_proj", "down_proj"))})
        for layer in range(m.arch.L):
            for fused, at, parts in (("qkv_proj", "self_attn", ("q", "k", "v")), ("gate_up_proj", "mlp", ("gate", "up"))):
                to = f"model.layers.{layer}.{at}."
                base[f"{to}{fused}.weight"] = torch.cat([m.base[f"{to}{p}_proj.weight"] for p in parts])
                adapter[to + fused] = (m.adapter[f"{to}{parts[0]}_proj"][0], torch.cat([m.adapter[f"{to}{p}_proj"][1] for p in parts]))
        m.base, m.adapter = base, adapter
        f, run = start(g, "megatron_torch_dist_fused_published", m, "phi3")
        write_torch_dist(run, torch_dist_names({**m.full, **m.named()}), tp=2)
        bridge_settings(run.parent, 8, RANK)
        g.finish(f, "Megatron-Bridge LoRA in torch_dist, a tensor for each layer: Phi-3 publishes q, k, v and gate, up in one tensor each, so B's rows become blocks",
                 [check("rank 4", "alpha 8"), *all_ways()], expectations(f, m, 8, target_modules=["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]))


def ranks(g, want):
    if want("megatron_ranks_tp2_pp2"):
        m = Model(seed=6, num_hidden_layers=4)
        f, run = start(g, "megatron_ranks_tp2_pp2", m)
        write_ranks(run, {**m.full, **m.named()}, m, tp=2, pp=2, lora_alpha=8)
        g.finish(f, "Megatron-Bridge LoRA in files of single ranks, TP 2 and PP 2: A cut along its rank or its inputs, B along its rows; alpha from args",
                 [check("rank 4", "alpha 8"), *all_ways()], expectations(f, m, 8, target_modules=TARGETS), np=[1, 2, 3])

    if want("megatron_ranks_swift_tp2"):
        m = Model(seed=7)
        f, run = start(g, "megatron_ranks_swift_tp2", m)
        base = {n.replace(".weight", ".base_layer.weight") if module_of(n) and n.endswith("weight") else n: t for n, t in m.full.items()}
        write_ranks(run, {**base, **m.named(bridge=False)}, m, tp=2)
        g.finish(f, "ms-swift LoRA in files of single ranks, TP 2: half of the matrices are on every rank whole; base weights under base_layer; alpha given",
                 [check("rank 4", "nothing says alpha"), *all_ways("--lora-alpha", "8")], expectations(f, m, 8, target_modules=TARGETS))

    if want("megatron_ranks_experts_ep2"):
        m = Model("qwen3_moe", seed=8)
        f, run = start(g, "megatron_ranks_experts_ep2", m)

        def grouped(name):
            return re.sub(r"local_experts\.(\d+)\.(.*)weight$", r"\2weight\1", name)
        write_ranks(run, {**m.full, **m.named(bridge=False)}, m, ep=2, rename=grouped, lora_alpha=8.0)
        g.finish(f, "ms-swift LoRA on grouped experts (lora_A.default.weight0, weight1 …) in files of single ranks, EP 2",
                 [check("rank 4", "alpha 8"), *all_ways()], expectations(f, m, 8))


def refusals(g, want):
    if want("megatron_alpha_unknown"):
        m = Model(seed=9)
        f, run = start(g, "megatron_alpha_unknown", m)
        write_torch_dist(run, stacked(torch_dist_names({**m.full, **m.named()}), "decoder.layers"), tp=1)
        says = {"exit": 3, "says": ["--lora-alpha"]}
        g.finish(f, "nothing in a Megatron checkpoint says alpha: extract, fold and extract-lora stop and name --lora-alpha; with it they work",
                 [call("merge", "none1", **says), call("merge", "none2", "--lora", "fold", **says), call("extract-lora", "none3", **says),
                  *all_ways("--lora-alpha", "8")], expectations(f, m, 8), ["{out}/none1", "{out}/none2", "{out}/none3"])

    if want("megatron_not_exact"):
        f = None
        for kind in ("parts_of_a_fused_tensor", "order_of_rows_unknown", "dora"):
            m = Model(seed=10)
            if f is None:
                f, _ = start(g, "megatron_not_exact", m)
                save_tensors(m.base, f / "expected/base.safetensors")
                hf = json.loads((f / "input/hf/config.json").read_text())
                (f / "input/phi3").mkdir()
                (f / "input/phi3/config.json").write_text(json.dumps({**hf, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}))
                shutil.rmtree(f / "input/run")
            stored = m.named(bridge=kind != "order_of_rows_unknown")
            if kind == "parts_of_a_fused_tensor":
                qkv = "decoder.layers.{}.self_attention.linear_qkv.adapter."
                stored = {f"{qkv.format(i)}adapter_q.{x}.weight": t for i in range(2)
                          for x, t in zip(("linear_in", "linear_out"), m.adapter[f"model.layers.{i}.self_attn.q_proj"])}
            if kind == "dora":
                stored["decoder.layers.0.mlp.linear_fc2.adapter.weight_magnitude"] = exact((m.arch.h,), m.gen)
            write_torch_dist(f / "input" / kind, torch_dist_names({**m.full, **stored}), tp=1)
        steps, says = [], {"parts_of_a_fused_tensor": "linear_qkv", "order_of_rows_unknown": "linear_fc1", "dora": "linear_fc2"}
        for kind, layer in says.items():
            where = ["--local-dir", "{case}/input/" + kind, "--hf-config", "{case}/input/" + ("phi3" if kind.startswith("parts") else "hf"), "--lora-alpha", "8"]
            for n, command in enumerate((["merge"], ["merge", "--lora", "fold"], ["extract-lora"])):
                steps.append(step(*command, *where, "--target-dir", "{out}/none", exit=4, says=[layer]))
        steps.append(step("merge", *where, "--target-dir", "{out}/model", "--lora", "drop", says=["dropped"]))
        g.finish(f, "what no pair of published matrices can say is refused by name: one projection of a tensor that is published fused, rows in an order that nothing tells, DoRA; --lora drop goes",
                 steps, [{"dir": "{out}/model", "tensors": "expected/base.safetensors"}], ["{out}/none"])


def build(out, only):
    g = Group(out, "lora")
    want = lambda name: not only or name in only
    torch_dist(g, want)
    ranks(g, want)
    refusals(g, want)


if __name__ == "__main__":
    main(build, __doc__)
