"""The model's logits equal those of torch.nn.Transformer on the same weights."""

import numpy as np
import pytest
from keras import ops

torch = pytest.importorskip("torch")

SOURCE_IDS = np.array([[4, 9, 5, 17, 8, 3], [6, 6, 3, 0, 0, 0]], "int32")
TARGET_IDS = np.array([[2, 8, 19, 4], [2, 11, 0, 0]], "int32")
D_MODEL, HEADS, D_FF, LAYERS = 12, 3, 10, 2


def array(weight):
    return ops.convert_to_numpy(weight)


def copy(parameter, *arrays):
    """Sets a torch parameter to these arrays, one below the other."""
    value = torch.tensor(np.concatenate(arrays))
    assert parameter.shape == value.shape
    parameter.data = value


def copy_attention(theirs, ours):
    dense = (ours.query_dense, ours.key_dense, ours.value_dense)
    copy(theirs.in_proj_weight, *[array(d.kernel).reshape(D_MODEL, D_MODEL).T for d in dense])
    copy(theirs.in_proj_bias, *[array(d.bias).reshape(D_MODEL) for d in dense])
    copy(theirs.out_proj.weight, array(ours.output_dense.kernel).reshape(D_MODEL, D_MODEL).T)
    copy(theirs.out_proj.bias, array(ours.output_dense.bias))


def copy_norm(theirs, ours):
    copy(theirs.weight, array(ours.gamma))
    copy(theirs.bias, array(ours.beta))


def copy_layer(theirs, ours, with_cross):
    residuals = [ours.self_attention_residual, ours.feed_forward_residual]
    copy_attention(theirs.self_attn, ours.self_attention)
    if with_cross:
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        residuals.insert(1, ours.cross_attention_residual)
    for number, residual in enumerate(residuals, start=1):
        copy_norm(getattr(theirs, f"norm{number}"), residual.norm)
    for linear, dense in (
        (theirs.linear1, ours.feed_forward.inner),
        (theirs.linear2, ours.feed_forward.outer),
    ):
        copy(linear.weight, array(dense.kernel).T)
        copy(linear.bias, array(dense.bias))


def torch_transformer(model, pre_norm, activation):
    transformer = torch.nn.Transformer(
        D_MODEL,
        HEADS,
        LAYERS,
        LAYERS,
        D_FF,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=pre_norm,
    )
    for side in ("encoder", "decoder"):
        theirs, ours = getattr(transformer, side), model.get_layer(side)
        for their_layer, our_layer in zip(theirs.layers, ours.layers, strict=True):
            copy_layer(their_layer, our_layer, with_cross=side == "decoder")
        if pre_norm:
            copy_norm(theirs.norm, ours.norm)
        else:  # torch normalises once more, the paper does not
            theirs.norm = None
    return transformer.train()  # the plain path of its layers; without dropout the same function


def embed(ids, matrix):
    """Embeddings times sqrt(d_model) plus sinusoids (paper 3.4, 3.5)."""
    angles = np.arange(ids.shape[1])[:, np.newaxis] / 10000 ** (np.arange(0, D_MODEL, 2) / D_MODEL)
    positions = np.zeros((ids.shape[1], D_MODEL))
    positions[:, 0::2], positions[:, 1::2] = np.sin(angles), np.cos(angles)
    return torch.tensor((matrix[ids] * np.sqrt(D_MODEL) + positions).astype("float32"))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post_norm", "pre_norm"])
def test_logits_equal_torch(tiny_model, pre_norm, activation):
    model = tiny_model(
        d_model=D_MODEL,
        num_heads=HEADS,
        d_ff=D_FF,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        pre_norm=pre_norm,
        activation=activation,
    )
    matrix = array(model.get_layer("embedding").embeddings)
    source_padding, target_padding = (torch.tensor(ids == 0) for ids in (SOURCE_IDS, TARGET_IDS))
    length = TARGET_IDS.shape[1]
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    output = torch_transformer(model, pre_norm, activation)(
        embed(SOURCE_IDS, matrix),
        embed(TARGET_IDS, matrix),
        tgt_mask=future,
        src_key_padding_mask=source_padding,
        tgt_key_padding_mask=target_padding,
        memory_key_padding_mask=source_padding,
    )
    expected = output.detach().numpy() @ matrix.T
    logits = array(model({"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}))
    real = TARGET_IDS != 0
    np.testing.assert_allclose(logits[real], expected[real], atol=2e-5)
