"""Exports models of timm and transformers, which must be installed, as make.py does for torchvision.

    corpus.py FOLDER [PATTERN ...]

PATTERN chooses names, as in "timm-*". Programs that are there already are not made again.
"""

import fnmatch
import gc
import json
import pathlib
import sys
import time
import traceback

import torch
from torch.export import Dim

import make

batch = Dim("batch")

# Names with the sides of the pictures; 0 means the model's own side.
PICTURES = {
    64: """resnet18 resnet50d resnext26ts seresnet18 ecaresnet26t skresnet18 resnest14d res2net50d dla46_c dpn48b
        ese_vovnet19b_dw regnety_002 regnetx_002 regnetz_b16 densenet121 cspresnet50 cspdarknet53 darknet17 xception41
        efficientnet_b0 tf_efficientnet_b0 efficientnetv2_rw_t tf_efficientnetv2_b0 mixnet_s lcnet_050 ghostnet_100
        rexnet_100 mnasnet_small mobilenetv2_050 mobilenetv3_small_100 mobilenetv4_conv_small fbnetc_100 hardcorenas_a
        nf_resnet26 eca_nfnet_l0 repvgg_a0 repvit_m0_9 mobileone_s0 repghostnet_050 hgnetv2_b0 selecsls42 tinynet_e
        convnext_atto convnextv2_atto inception_next_atto poolformer_s12 caformer_s18 convmixer_768_32
        edgenext_xx_small starnet_s050 hrnet_w18_small vgg11_bn""",
    96: "inception_v4 xception41p pvt_v2_b0 fastvit_t8 focalnet_tiny_srf lambda_resnet26t",
    128: "mobilevit_xxs mobilevitv2_050 efficientvit_b0 davit_tiny rdnet_tiny",
    0: """vit_tiny_patch16_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 swin_tiny_patch4_window7_224
        beit_base_patch16_224 xcit_nano_12_p16_224 levit_128s efficientformer_l1 efficientformerv2_s0 halonet26t coat_lite_tiny coatnet_pico_rw_224
        twins_svt_small pit_ti_224 mvitv2_tiny mixer_s32_224 gmlp_ti16_224 resmlp_12_224 hiera_tiny_224 tiny_vit_5m_224
        crossvit_tiny_240 eva02_tiny_patch14_224 visformer_tiny vit_relpos_small_patch16_224 gcvit_xxtiny volo_d1_224
        cait_xxs24_224 sequencer2d_s nest_tiny tnt_s_patch16_224 maxvit_pico_rw_256 swinv2_cr_tiny_ns_224
        swinv2_tiny_window8_256 botnet26t_256 vit_small_patch14_dinov2 convit_tiny""",
}
# Models that are exported once more after run_decompositions, or in training mode.
DECOMPOSED = "resnet18 efficientnet_b0 convnext_atto vit_tiny_patch16_224 swin_tiny_patch4_window7_224 mobilevit_xxs".split()
TRAINING = """resnet18 densenet121 efficientnet_b0 mobilenetv3_small_100 regnety_002 convnext_atto lcnet_050
    vit_tiny_patch16_224 seresnet18""".split()


def pictures():
    import timm

    for side, names in PICTURES.items():
        for name in names.split():
            options = {"img_size": 224} if name == "vit_small_patch14_dinov2" else {}
            s = side or options.get("img_size") or timm.get_pretrained_cfg(name).input_size[-1]
            create = lambda name=name, options=options: timm.create_model(name, **options)
            calls = [((make.pictures(s, n),), {}) for n in (2, 3)]
            yield f"timm-{name}", create, calls, ({0: batch},), {}
            if name in DECOMPOSED:
                yield f"timm-{name}-plain", create, calls, ({0: batch},), {"decompose": True}
            if name in TRAINING:
                calls = [((make.pictures(s, 4),), {}) for n in range(2)]
                yield f"timm-{name}-training", lambda create=create: create().train(), calls, None, {"training": True}


def words(n, length=12, vocabulary=90):
    ids = torch.randint(5, vocabulary, (n, length))
    mask = torch.ones(n, length, dtype=torch.int64)
    mask[:, length - 3:] = torch.randint(0, 2, (n, 3)).sort(1, descending=True)[0]
    return {"input_ids": ids, "attention_mask": mask}


class Cached(torch.nn.Module):
    """A language model whose cache is an argument, as lists of tensors, and a result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, past):
        from transformers import DynamicCache

        cache = DynamicCache(past)
        out = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        return out.logits, [(layer.keys, layer.values) for layer in cache.layers]


def texts():
    import transformers as tf
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()
    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    bert = dict(vocab_size=100, max_position_embeddings=64, **small)
    both = {k: {0: batch} for k in ("input_ids", "attention_mask")}
    sequence = Dim("sequence", max=60)
    any_length = {k: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for k in ("input_ids", "attention_mask")}
    free = {k: {0: batch, 1: sequence} for k in ("input_ids", "attention_mask")}
    text_calls = [((), words(2)), ((), words(3))]
    long_calls = [((), words(2)), ((), words(3, 17))]

    def of(name, config, model, calls, dynamic, **options):
        def create():
            c = config() if callable(config) else config
            if "attention" in options:
                c._attn_implementation = options["attention"]
            m = getattr(tf, model)(c)
            return m.train() if options.get("training") else m
        rest = {k: v for k, v in options.items() if k != "attention"}
        return f"transformers-{name}", create, calls, dynamic, rest

    def pics(side=32, more={}, n=(2, 3)):
        return [((), {"pixel_values": make.pictures(side, k), **more}) for k in n]
    pic = {"pixel_values": {0: batch}}

    encoders = [
        ("bert", "Bert", {}, "BertModel"), ("bert-classify", "Bert", {}, "BertForSequenceClassification"),
        ("bert-mask", "Bert", {}, "BertForMaskedLM"), ("roberta", "Roberta", {}, "RobertaModel"),
        ("xlm-roberta", "XLMRoberta", {}, "XLMRobertaForTokenClassification"),
        ("electra", "Electra", {"embedding_size": 16}, "ElectraModel"), ("mpnet", "MPNet", {}, "MPNetModel"),
        ("albert", "Albert", {"embedding_size": 16}, "AlbertModel"), ("deberta-v2", "DebertaV2", {"relative_attention": True,
            "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}, "DebertaV2Model"),
        ("deberta", "Deberta", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "DebertaModel"),
        ("data2vec-text", "Data2VecText", {}, "Data2VecTextModel"),
        ("modern-bert", "ModernBert", {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}, "ModernBertModel"),
    ]
    for name, kind, more, model in encoders:
        config = lambda kind=kind, more=more: getattr(tf, kind + "Config")(**{**bert, **more})
        dynamic, calls = (free, long_calls) if name not in ("deberta", "deberta-v2") else (both, text_calls)
        yield of(name, config, model, calls, dynamic)
        if name in ("bert", "roberta", "electra"):
            yield of(name + "-plain", config, model, text_calls, both, decompose=True)
        if name in ("bert-classify",):
            yield of(name + "-training", config, model, [((), words(4))] * 2, None, training=True)
        if name in ("bert", "roberta"):
            yield of(name + "-eager", config, model, text_calls, both, attention="eager")
    distil = lambda: tf.DistilBertConfig(vocab_size=100, max_position_embeddings=64, dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    yield of("distilbert", distil, "DistilBertModel", long_calls, free)
    t5 = lambda: tf.T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    yield of("t5-encoder", t5, "T5EncoderModel", long_calls, free, attention="eager")
    decoder_ids = {"decoder_input_ids": torch.randint(1, 90, (2, 5))}
    yield of("t5", t5, "T5Model", [((), {**words(2), **decoder_ids, "use_cache": False})], None, attention="eager")
    bart = lambda: tf.BartConfig(vocab_size=100, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                 decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64)
    yield of("bart", bart, "BartModel", [((), {**words(2), **decoder_ids, "use_cache": False})], None)

    # Decoders.
    gpt2 = lambda: tf.GPT2Config(vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    modern = dict(vocab_size=100, num_key_value_heads=2, max_position_embeddings=64, **small)
    decoders = [("gpt2", gpt2, "GPT2LMHeadModel")] + [
        (name, lambda kind=kind, more=more: getattr(tf, kind + "Config")(**modern, **more), kind + "ForCausalLM") for name, kind, more in [
            ("llama", "Llama", {}), ("qwen2", "Qwen2", {}), ("qwen3", "Qwen3", {"head_dim": 8}), ("mistral", "Mistral", {}),
            ("gemma", "Gemma", {"head_dim": 8}), ("gemma2", "Gemma2", {"head_dim": 8}), ("phi3", "Phi3", {"pad_token_id": 0}), ("mixtral", "Mixtral", {})]]
    none = {"use_cache": None}
    for name, config, model in decoders:
        calls = [((), {**w[1], "use_cache": False}) for w in long_calls]
        yield of(name, config, model, calls, {**any_length, **none}, **({"attention": "eager"} if name == "gemma2" else {}))
        if name in ("gpt2", "llama"):
            yield of(name + "-plain", config, model, calls, {**any_length, **none}, decompose=True)
            yield of(name + "-cache-out", config, model, [((), {**w[1], "use_cache": True}) for w in text_calls], {**both, **none})

            def cached(config=config, model=model):
                return Cached(getattr(tf, model)(config()).eval())
            heads = 4 if name == "gpt2" else 2
            past = lambda n, length: [(torch.randn(n, heads, length, 8), torch.randn(n, heads, length, 8)) for _ in range(2)]
            yield (f"transformers-{name}-cache-in-out", cached,
                   [((torch.randint(1, 90, (2, 1)), past(2, 5)), {}), ((torch.randint(1, 90, (2, 1)), past(2, 9)), {})],
                   (None, [({2: Dim.DYNAMIC}, {2: Dim.DYNAMIC})] * 2), {})

            def cache_call(n, length):
                cache = tf.DynamicCache(past(n, length))
                return (), {"input_ids": torch.randint(1, 90, (n, 1)), "past_key_values": cache, "use_cache": True}
            yield of(name + "-cache-object", config, model, [cache_call(2, 5)], None)

    # Pictures.
    vision = dict(image_size=32, patch_size=8, **small)
    for name, kind, more, model, options in [
            ("vit", "ViT", {}, "ViTModel", {}), ("vit-classify", "ViT", {}, "ViTForImageClassification", {}),
            ("deit", "DeiT", {}, "DeiTForImageClassification", {}), ("beit", "Beit", {"use_relative_position_bias": True}, "BeitModel", {}),
            ("dinov2", "Dinov2", {}, "Dinov2Model", {}), ("siglip-vision", "SiglipVision", {}, "SiglipVisionModel", {}),
            ("clip-vision", "CLIPVision", {}, "CLIPVisionModel", {}), ("vit-mae", "ViTMAE", {}, "ViTMAEModel", {"static": True}),
            ("dinov3", "DINOv3ViT", {}, "DINOv3ViTModel", {})]:
        yield of(name, lambda kind=kind, more=more: getattr(tf, kind + "Config")(**vision, **more), model, pics(), pic)
    yield of("vit-plain", lambda: tf.ViTConfig(**vision), "ViTModel", pics(), pic, decompose=True)
    swin = dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4)
    yield of("swin", lambda: tf.SwinConfig(**swin), "SwinModel", pics(), pic)
    yield of("swin-classify", lambda: tf.SwinConfig(**swin), "SwinForImageClassification", pics(), pic)
    yield of("swinv2", lambda: tf.Swinv2Config(**swin), "Swinv2Model", pics(), pic)
    yield of("convnext", lambda: tf.ConvNextConfig(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1]), "ConvNextModel", pics(64), pic)
    yield of("convnextv2", lambda: tf.ConvNextV2Config(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1]), "ConvNextV2ForImageClassification", pics(64), pic)
    yield of("resnet", lambda: tf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1]), "ResNetForImageClassification", pics(64), pic)
    yield of("segformer", lambda: tf.SegformerConfig(hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=16), "SegformerForSemanticSegmentation", pics(64), pic)
    yield of("mobilevit", lambda: tf.MobileViTConfig(image_size=64), "MobileViTModel", pics(64), pic)
    yield of("detr", lambda: tf.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
             backbone_config=tf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]), d_model=32, encoder_layers=1,
             decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=10),
             "DetrForObjectDetection", pics(64, n=(2,)), None)
    yield of("yolos", lambda: tf.YolosConfig(**{**small, "image_size": [32, 32], "patch_size": 8, "num_detection_tokens": 5}), "YolosForObjectDetection", pics(32), pic)
    clip_text = dict(vocab_size=100, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, **small)
    clip = lambda kind: lambda: getattr(tf, kind + "Config")(text_config=clip_text, vision_config=vision, projection_dim=16)
    yield of("clip-text", lambda: tf.CLIPTextConfig(**clip_text), "CLIPTextModel", text_calls, both)
    both_calls = [((), {**words(3), "pixel_values": make.pictures(32, n)}) for n in (2, 4)]
    yield of("clip", clip("CLIP"), "CLIPModel", both_calls, {**{k: {0: Dim("texts")} for k in both}, "pixel_values": {0: Dim("pictures")}})
    yield of("siglip", clip("Siglip"), "SiglipModel", both_calls[:1], None)
    # Sounds.
    whisper = lambda: tf.WhisperConfig(vocab_size=100, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                       decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20,
                                       max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    mel = lambda n: {"input_features": torch.randn(n, 8, 40)}

    def whisper_encoder():
        return tf.WhisperModel(whisper()).encoder
    yield "transformers-whisper-encoder", whisper_encoder, [((), mel(2)), ((), mel(3))], {"input_features": {0: batch}}, {}
    yield of("whisper", whisper, "WhisperModel", [((), {**mel(2), **decoder_ids, "use_cache": False})], None)
    sound = dict(**small, conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2, num_conv_pos_embeddings=8,
                 num_conv_pos_embedding_groups=2, vocab_size=20)
    heard = [((), {"input_values": torch.randn(n, 400)}) for n in (2, 3)]
    for name, kind, model in [("wav2vec2", "Wav2Vec2", "Wav2Vec2ForCTC"), ("hubert", "Hubert", "HubertModel"), ("wavlm", "WavLM", "WavLMModel")]:
        yield of(name, lambda kind=kind: getattr(tf, kind + "Config")(**sound), model, heard, {"input_values": {0: batch}})
    yield of("clap-audio", lambda: tf.ClapAudioConfig(spec_size=64, patch_size=4, window_size=4, num_mel_bins=16, patch_stride=[4, 4], depths=[1, 1], hidden_size=32,
             num_attention_heads=[2, 4], patch_embeds_hidden_size=16, num_classes=5), "ClapAudioModel", [((), {"input_features": torch.randn(2, 1, 64, 16)})], None)
    yield of("ast", lambda: tf.ASTConfig(**small, patch_size=8, max_length=32, num_mel_bins=16), "ASTModel",
             [((), {"input_values": torch.randn(n, 32, 16)}) for n in (2, 3)], {"input_values": {0: batch}})


def main():
    folder = pathlib.Path(sys.argv[1])
    patterns = sys.argv[2:] or ["*"]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name, create, calls, dynamic, options in [*pictures(), *texts()]:
        if not any(fnmatch.fnmatch(name, p) for p in patterns) or (folder / f"{name}.json").exists() or (folder / f"{name}.error").exists():
            continue
        start = time.time()
        torch.manual_seed(0)
        try:
            model = create()
            if not options.get("training"):
                model = make.scramble(model.eval())
            try:
                make.write(folder, name, model, calls, dynamic, **options)
                how = "batch" if dynamic else "fixed"
            except Exception as e:
                if not dynamic:
                    raise
                how = f"fixed, because {type(e).__name__}: {str(e)[:200]!r}"
                make.write(folder, name, model, calls[:1], None, **options)
        except Exception as e:  # a model that PyTorch does not export
            how = f"{type(e).__name__}: {str(e)[:300]!r}"
            (folder / f"{name}.error").write_text(how + "\n" + traceback.format_exc())
            (folder / f"{name}.pt2").unlink(missing_ok=True)
        print(f"{name}: {how} ({time.time() - start:.0f} s)", flush=True)
        model = None
        gc.collect()


if __name__ == "__main__":
    main()
