"""Model code from transformers, small and with random weights, trained on eager and on the device.

AdamW, gradient clipping, a learning-rate schedule, dropout on: same losses, same parameters. A
summary says which were equal bit for bit.
"""

import copy

import pytest
import torch
import transformers
from comparing import COMPILED, DEVICE

if DEVICE.type == "lazy":
    import torch_lazy

STEPS = 4
VOCABULARY = 96


def text(model_class, config_class, **config):
    def make(generator):
        ids = torch.randint(3, VOCABULARY, (2, 16), generator=generator)
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}

    return model_class, config_class, config | {"vocab_size": VOCABULARY}, make


def classified(model_class, config_class, **config):
    def make(generator):
        ids = torch.randint(3, VOCABULARY, (4, 12), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 1, 0])}

    return model_class, config_class, config | {"vocab_size": VOCABULARY}, make


def sequence_to_sequence(model_class, config_class, **config):
    def make(generator):
        ids = torch.randint(3, VOCABULARY, (2, 12), generator=generator)
        labels = torch.randint(3, VOCABULARY, (2, 9), generator=generator)
        labels[0, 6:] = -100
        return {"input_ids": ids, "labels": labels}

    return model_class, config_class, config | {"vocab_size": VOCABULARY}, make


def image(model_class, config_class, size=32, **config):
    def make(generator):
        pixels = torch.randn(2, 3, size, size, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(0, 5, (2,), generator=generator)}

    return model_class, config_class, config | {"num_labels": 5}, make


def clip():
    text_config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 16,
        "attention_dropout": 0.1,
        "eos_token_id": 2,
    }
    vision_config = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 8,
        "attention_dropout": 0.1,
    }

    def make(generator):
        ids = torch.randint(3, VOCABULARY, (3, 8), generator=generator)
        ids[:, -1] = 2
        pixels = torch.randn(3, 3, 16, 16, generator=generator)
        return {"input_ids": ids, "pixel_values": pixels, "return_loss": True}

    config = {"text_config": text_config, "vision_config": vision_config, "projection_dim": 24}
    return transformers.CLIPModel, transformers.CLIPConfig, config, make


def speech_to_text():
    config = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_mel_bins": 8,
        "max_source_positions": 20,
        "max_target_positions": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "dropout": 0.1,
    }

    def make(generator):
        features = torch.randn(2, 8, 40, generator=generator)
        return {
            "input_features": features,
            "labels": torch.randint(3, VOCABULARY, (2, 7), generator=generator),
        }

    return transformers.WhisperForConditionalGeneration, transformers.WhisperConfig, config, make


def speech():
    config = {
        "vocab_size": 20,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "conv_dim": (16, 16, 16),
        "conv_stride": (5, 2, 2),
        "conv_kernel": (10, 3, 3),
        "num_feat_extract_layers": 3,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
        "mask_time_prob": 0.0,
        "layerdrop": 0.0,
        "ctc_loss_reduction": "mean",
    }

    def make(generator):
        labels = torch.randint(1, 20, (2, 5), generator=generator)
        return {"input_values": torch.randn(2, 800, generator=generator), "labels": labels}

    return transformers.Wav2Vec2ForCTC, transformers.Wav2Vec2Config, config, make


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
LLAMA = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 32, "attention_dropout": 0.1}
BLOCKS = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}

MODELS = {
    # Encoders.
    "bert": text(transformers.BertForMaskedLM, transformers.BertConfig, **SMALL),
    "roberta": classified(
        transformers.RobertaForSequenceClassification, transformers.RobertaConfig, **SMALL
    ),
    "distilbert": text(
        transformers.DistilBertForMaskedLM,
        transformers.DistilBertConfig,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
    ),
    "electra": text(
        transformers.ElectraForMaskedLM, transformers.ElectraConfig, embedding_size=16, **SMALL
    ),
    "deberta": classified(
        transformers.DebertaV2ForSequenceClassification,
        transformers.DebertaV2Config,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        **SMALL,
    ),
    # Decoders.
    "gpt2": text(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
    ),
    "llama": text(transformers.LlamaForCausalLM, transformers.LlamaConfig, **LLAMA),
    "mistral": text(
        transformers.MistralForCausalLM, transformers.MistralConfig, sliding_window=8, **LLAMA
    ),
    "qwen2": text(
        transformers.Qwen2ForCausalLM, transformers.Qwen2Config, tie_word_embeddings=True, **LLAMA
    ),
    "gpt_neox": text(
        transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig, attention_dropout=0.1, **SMALL
    ),
    "opt": text(
        transformers.OPTForCausalLM,
        transformers.OPTConfig,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        word_embed_proj_dim=32,
        max_position_embeddings=32,
    ),
    # Encoders with decoders.
    "t5": sequence_to_sequence(
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    ),
    "bart": sequence_to_sequence(
        transformers.BartForConditionalGeneration,
        transformers.BartConfig,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
    ),
    # Vision: attention, then convolution.
    "vit": image(
        transformers.ViTForImageClassification,
        transformers.ViTConfig,
        image_size=32,
        patch_size=8,
        hidden_dropout_prob=0.1,
        **SMALL,
    ),
    "swin": image(
        transformers.SwinForImageClassification,
        transformers.SwinConfig,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    "resnet": image(
        transformers.ResNetForImageClassification,
        transformers.ResNetConfig,
        embedding_size=8,
        layer_type="basic",
        **BLOCKS,
    ),
    "convnext": image(
        transformers.ConvNextForImageClassification,
        transformers.ConvNextConfig,
        drop_path_rate=0.1,
        **BLOCKS,
    ),
    "mobilenet_v2": image(
        transformers.MobileNetV2ForImageClassification,
        transformers.MobileNetV2Config,
        depth_multiplier=0.25,
    ),
    # State space.
    "mamba": text(
        transformers.MambaForCausalLM,
        transformers.MambaConfig,
        hidden_size=32,
        state_size=4,
        num_hidden_layers=2,
        use_mambapy=False,
    ),
    "mamba2": text(
        transformers.Mamba2ForCausalLM,
        transformers.Mamba2Config,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=8,
    ),
    # Mixtures of experts.
    "mixtral": text(
        transformers.MixtralForCausalLM,
        transformers.MixtralConfig,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
        **LLAMA,
    ),
    "switch": sequence_to_sequence(
        transformers.SwitchTransformersForConditionalGeneration,
        transformers.SwitchTransformersConfig,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        num_experts=4,
        expert_capacity=8,
        decoder_start_token_id=0,
    ),
    # Speech, and text with images.
    "wav2vec2": speech(),
    "whisper": speech_to_text(),
    "clip": clip(),
}

# What these compute decides what they do next, so that steps differ.
DATA_DEPENDENT = {"mixtral", "switch"}

# Batch norm over two small images: a difference in the last bit grows by orders in a step.
AMPLIFYING = {"resnet", "mobilenet_v2"}


def train(model, batches, device):
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    losses, compilations = [], []
    for batch in batches:
        batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append((loss.item(), norm.item()))
        if DEVICE.type == "lazy":
            torch_lazy.mark_step()
            compilations.append(torch_lazy.metrics.counter_value("UncachedCompile"))
    return losses, compilations


def convert(batch, dtype):
    return {
        k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in batch.items()
    }


# Fused kernels round otherwise, and training amplifies that: AdamW makes a whole step of a gradient
# that is nothing but rounding. In float64 there is room for it.
@pytest.mark.parametrize("dtype", [torch.float32, *[torch.float64] * COMPILED], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_training(name, dtype, record_property):
    if name == "clip" and dtype == torch.float64:
        pytest.skip("eager: its mask in float32 refuses float64's lowest number")
    model_class, config_class, config, make_batch = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**config)).train().to(dtype)
    generator = torch.Generator().manual_seed(1)
    batches = [convert(make_batch(generator), dtype) for _ in range(STEPS)]
    on_device = copy.deepcopy(model).to(DEVICE)

    expected, _ = train(model, batches, "cpu")
    actual, compilations = train(on_device, batches, DEVICE)

    state = on_device.state_dict()
    difference = max(
        (state[k].cpu() - v).abs().double().max().item()
        for k, v in model.state_dict().items()
        if v.numel()
    )
    equal = expected == actual and difference == 0
    record_property(
        "model",
        (name, "bit for bit" if equal else f"largest difference of a parameter {difference:.1e}"),
    )
    if COMPILED and dtype == torch.float32:
        steps = 1 if name in AMPLIFYING else STEPS
        for one, other in zip(actual[:steps], expected[:steps], strict=True):
            assert one == pytest.approx(other, rel=1e-3)
        return
    for (loss, norm), (device_loss, device_norm) in zip(expected, actual, strict=True):
        assert device_loss == pytest.approx(loss, rel=1e-5)
        assert device_norm == pytest.approx(norm, rel=1e-4)
    atol = 1e-4 if COMPILED and name == "switch" else 1e-5  # its router is in float32 always
    for key, value in model.state_dict().items():
        torch.testing.assert_close(
            state[key].cpu(), value, rtol=1e-4, atol=atol, msg=lambda m, key=key: f"{key}: {m}"
        )
    if compilations and name not in DATA_DEPENDENT:
        # The first step makes the optimizer's state; the second is like all others.
        assert compilations[-1] == compilations[-2], compilations


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_generation(name):
    """Greedy generation with a cache: the graph grows by a token at a time."""
    model_class, config_class, config, make_batch = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**config)).eval()
    ids = make_batch(torch.Generator().manual_seed(1))["input_ids"][:, :5]
    arguments = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
    on_device = copy.deepcopy(model).to(DEVICE)
    ids = ids.to(DEVICE)
    actual = on_device.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
    assert actual.tolist() == expected.tolist()
