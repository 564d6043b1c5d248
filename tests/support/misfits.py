"""Asks many kinds of graphs for inputs of shapes that their signatures do not name, as a program that may die of it.

`python -m tests.support.misfits SEED SHAPES [KIND ...]` prints how many were answered and how many refused.
"""

from __future__ import annotations

import logging
import random
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import RequestError
from paramsync.graphs.capturing import capture
from paramsync.inference import execute
from paramsync.inference.questions import Question
from paramsync.inference.resident import Resident
from paramsync.version import Version

MEMORY = 3 << 30  # bytes by which the process may grow
ELEMENTS = 1 << 16
ADDRESSABLE = 1 << 24  # of what has no element: paramsync.rpc.tensor_proto takes no more

nn, math, raw = tf.nn, tf.math, tf.raw_ops
FLOAT, INT, TEXT = tf.float32, tf.int32, tf.string
Kind = tuple[Sequence[tuple[Sequence[int | None], tf.DType]], Callable[..., Any]]

W = np.arange(12, dtype=np.float32).reshape(4, 3)
K = np.ones([2, 2, 3, 4], np.float32)
K3 = np.ones([2, 2, 2, 3, 4], np.float32)
V, IMAGE, VOLUME = ([None, 4], FLOAT), ([None, 6, 6, 3], FLOAT), ([None, 4, 4, 4, 3], FLOAT)
N, T = ([None], INT), ([None], TEXT)


@tf.function
def _called(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, 4]) + tf.zeros_like(x)


def _loop(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda at, _: at < 3, lambda at, y: (at + 1, nn.relu(y) + x), (0, x))[1]


def _scan(x: tf.Tensor) -> tf.Tensor:
    return tf.scan(lambda a, b: a + b, x)


def _mapped(x: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda row: row * 2.0, x)


def _lstm(x: tf.Tensor) -> tf.Tensor:
    zeros = tf.zeros([tf.shape(x)[0], 2])
    w, p = tf.ones([6, 8]), tf.zeros([2])
    return raw.LSTMBlockCell(x=x, cs_prev=zeros, h_prev=zeros, w=w, wci=p, wcf=p, wco=p, b=tf.zeros([8])).h


def _block_lstm(x: tf.Tensor) -> tf.Tensor:
    zeros = tf.zeros([tf.shape(x)[1], 2])
    w, p = tf.ones([6, 8]), tf.zeros([2])
    long = tf.cast(tf.shape(x)[0], tf.int64)
    return raw.BlockLSTMV2(
        seq_len_max=long, x=x, cs_prev=zeros, h_prev=zeros, w=w, wci=p, wcf=p, wco=p, b=tf.zeros([8])
    ).h


def _sparse(x: tf.Tensor) -> tf.Tensor:
    return tf.sparse.to_dense(tf.sparse.softmax(tf.sparse.from_dense(x)))


def _ragged(x: tf.Tensor) -> tf.Tensor:
    return tf.RaggedTensor.from_tensor(x).to_tensor()


def _examples(x: tf.Tensor) -> tf.Tensor:
    return tf.io.parse_example(x, {"x": tf.io.FixedLenFeature([2], FLOAT, [0.0, 0.0])})["x"]


def _ones(function: Callable[..., Any], names: str, spec: Any) -> Iterator[tuple[str, Kind]]:
    for name in names.split():
        yield name, ([spec], getattr(function, name))


KINDS: dict[str, Kind] = {
    **dict(
        _ones(
            math,
            """abs acos acosh asin asinh atan atanh ceil cos cosh cumsum cumprod digamma erf exp expm1 floor
        is_finite is_nan l2_normalize lgamma log log1p log_softmax negative reciprocal reduce_euclidean_norm
        reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_std reduce_sum reduce_variance rint round
        rsqrt sigmoid sign sin sinh softmax softplus sqrt square tan tanh zero_fraction""",
            V,
        )
    ),
    **dict(_ones(nn, "elu gelu leaky_relu relu relu6 selu silu softsign l2_loss", V)),
    **dict(_ones(tf, "shape size rank transpose identity zeros_like ones_like where squeeze stop_gradient", V)),
    **dict(_ones(tf.linalg, "diag diag_part trace matrix_transpose norm", V)),
    **dict(_ones(tf.linalg, "inv det cholesky qr svd eigvalsh logdet pinv expm sqrtm lu", ([None, 3, 3], FLOAT))),
    **dict(_ones(tf.signal, "rfft", V)),
    "hann_window": ([N], lambda x: tf.signal.hann_window(x[0])),
    **dict(_ones(tf.strings, "length lower upper strip to_number reduce_join as_string", T)),
    **dict(
        _ones(
            tf.image,
            """flip_left_right rgb_to_hsv rgb_to_grayscale hsv_to_rgb image_gradients sobel_edges
        per_image_standardization transpose rot90""",
            IMAGE,
        )
    ),
    "matmul": ([V], lambda x: tf.matmul(x, W)),
    "matmul_own": ([V], lambda x: tf.matmul(x, x, transpose_b=True)),
    "dense": ([V], lambda x: nn.relu(nn.bias_add(tf.matmul(x, W), tf.ones([3])))),
    "bias": ([V], lambda x: nn.bias_add(x, tf.ones([4]))),
    "einsum": ([V], lambda x: tf.einsum("bi,ij->bj", x, W)),
    "table": ([V], lambda x: x[:, None] + x[None]),
    "add": ([V], lambda x: x + tf.ones([50_000, 1])),
    "conv": ([IMAGE], lambda x: nn.conv2d(x, K, 1, "SAME")),
    "pool": ([IMAGE], lambda x: nn.max_pool2d(x, 2, 2, "SAME")),
    "conv_valid": ([IMAGE], lambda x: nn.conv2d(x, K, 2, "VALID", dilations=1)),
    "depthwise": ([IMAGE], lambda x: nn.depthwise_conv2d(x, K, [1, 1, 1, 1], "SAME")),
    "atrous": ([IMAGE], lambda x: nn.atrous_conv2d(x, K, 2, "SAME")),
    "lrn": ([IMAGE], nn.local_response_normalization),
    "conv_transpose": ([IMAGE], lambda x: nn.conv2d_transpose(x, np.ones([2, 2, 4, 3], np.float32), [2, 6, 6, 4], 1)),
    "conv3d": ([VOLUME], lambda x: nn.conv3d(x, K3, [1] * 5, "SAME")),
    "pool3d": ([VOLUME], lambda x: nn.max_pool3d(x, 2, 2, "SAME")),
    "avg_pool": ([IMAGE], lambda x: nn.avg_pool2d(x, 3, 1, "VALID")),
    "dilation": ([IMAGE], lambda x: nn.dilation2d(x, np.ones([2, 2, 3], np.float32), [1] * 4, "SAME", "NHWC", [1] * 4)),
    "norm": (
        [IMAGE],
        lambda x: tf.compat.v1.nn.fused_batch_norm(
            x, tf.ones([3]), tf.zeros([3]), tf.zeros([3]), tf.ones([3]), is_training=False
        )[0],
    ),
    "resize": ([IMAGE], lambda x: tf.image.resize(x, [9, 9])),
    "nearest": ([IMAGE], lambda x: tf.image.resize(x, [3, 3], "nearest")),
    "area": ([IMAGE], lambda x: tf.image.resize(x, [5, 5], "area")),
    "bicubic": ([IMAGE], lambda x: tf.image.resize(x, [5, 5], "bicubic")),
    "crop": ([IMAGE], lambda x: tf.image.crop_and_resize(x, [[0.0, 0.0, 1.0, 1.0]], [0], [3, 3])),
    "patches": ([IMAGE], lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME")),
    "hue": ([IMAGE], lambda x: tf.image.adjust_hue(x, 0.1)),
    "contrast": ([IMAGE], lambda x: tf.image.adjust_contrast(x, 2.0)),
    "boxes": ([V], lambda x: tf.image.non_max_suppression(x, tf.ones([3]), 2)),
    "space": ([IMAGE], lambda x: tf.nn.space_to_depth(x, 2)),
    "depth": ([([None, 6, 6, 4], FLOAT)], lambda x: nn.depth_to_space(x, 2)),
    "batch_space": ([IMAGE], lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]])),
    "gather": ([N], lambda x: tf.gather(W, x)),
    "gather_nd": ([N], lambda x: tf.gather_nd(W, x)),
    "gather_batch": ([V, ([None, 2], INT)], lambda x, i: tf.gather(x, i, batch_dims=1)),
    "gather_axis": ([V], lambda x: tf.gather(x, [0, 1], axis=1)),
    "one_hot": ([N], lambda x: tf.one_hot(x, 5)),
    "scatter": ([N], lambda x: tf.scatter_nd(x[:, None], tf.ones_like(x), [9])),
    "scatter_on": ([V], lambda x: tf.tensor_scatter_nd_add(x, [[0]], [[1.0] * 4])),
    "segments": ([V], lambda x: math.segment_sum(x, [0, 0, 1])),
    "unsorted": ([N], lambda x: math.unsorted_segment_sum(tf.ones_like(x), x, 5)),
    "bincount": ([N], lambda x: math.bincount(x, maxlength=9)),
    "unique": ([N], lambda x: tf.unique(x)[0]),
    "top_k": ([V], lambda x: math.top_k(x, 2).values),
    "sort": ([V], tf.sort),
    "argmax": ([V], lambda x: tf.argmax(x, -1)),
    "in_top_k": ([V], lambda x: math.in_top_k([0, 1], x, 1)),
    "reshape": ([V], lambda x: tf.reshape(x, [-1, 2])),
    "flatten": ([IMAGE], lambda x: tf.reshape(x, [tf.shape(x)[0], -1])),
    "expand": ([V], lambda x: tf.expand_dims(x, 2)),
    "squeeze_1": ([([None, 1], FLOAT)], lambda x: tf.squeeze(x, 1)),
    "slice": ([V], lambda x: x[:, 1:3]),
    "last": ([V], lambda x: x[..., -1]),
    "cut": ([V], lambda x: tf.slice(x, [0, 1], [-1, 2])),
    "concat": ([V, V], lambda x, y: tf.concat([x, y], 1)),
    "stack": ([V, V], lambda x, y: tf.stack([x, y], 1)),
    "split": ([V], lambda x: tf.split(x, 2, 1)[0]),
    "unstack": ([V], lambda x: tf.unstack(x, axis=1)[0]),
    "pad": ([V], lambda x: tf.pad(x, [[0, 0], [1, 1]])),
    "mirror": ([V], lambda x: tf.pad(x, [[0, 0], [1, 1]], "REFLECT")),
    "tile": ([V], lambda x: tf.tile(x, [1, 3])),
    "roll": ([V], lambda x: tf.roll(x, 1, 1)),
    "reverse": ([V], lambda x: tf.reverse(x, [1])),
    "reverse_sequence": ([V], lambda x: tf.reverse_sequence(x, [1, 2, 3], 1, 0)),
    "broadcast": ([V], lambda x: tf.broadcast_to(x, [3, 4])),
    "fill": ([V], lambda x: tf.fill(tf.shape(x), 1.0)),
    "band": ([V], lambda x: tf.linalg.band_part(x, 0, 1)),
    "set_diag": ([([None, 3, 3], FLOAT)], lambda x: tf.linalg.set_diag(x, tf.ones(tf.shape(x)[:-1]))),
    "diag_v3": ([V], lambda x: tf.linalg.diag(x, k=1)),
    "solve": ([([None, 3, 3], FLOAT)], lambda x: tf.linalg.solve(x, tf.ones([1, 3, 1]))),
    "triangular": ([([None, 3, 3], FLOAT)], lambda x: tf.linalg.triangular_solve(x, tf.ones([1, 3, 1]))),
    "tridiagonal": ([([None, 3, 5], FLOAT)], lambda x: tf.linalg.tridiagonal_solve(x, tf.ones([1, 5, 1]))),
    "fft2": ([IMAGE], lambda x: tf.signal.fft2d(tf.cast(x, tf.complex64))),
    "irfft": ([V], lambda x: tf.signal.irfft(tf.cast(x, tf.complex64))),
    "frame": ([V], lambda x: tf.signal.frame(x, 2, 1)),
    "stft": ([([None, 32], FLOAT)], lambda x: tf.abs(tf.signal.stft(x, 8, 4))),
    "xent": ([V], lambda x: nn.softmax_cross_entropy_with_logits(tf.ones_like(x), x)),
    "sparse_xent": ([V], lambda x: nn.sparse_softmax_cross_entropy_with_logits([0, 1], x)),
    "ctc": ([([None, 2, 4], FLOAT)], lambda x: tf.sparse.to_dense(nn.ctc_greedy_decoder(x, [3, 3])[0][0])),
    "quantize": ([V], tf.quantization.fake_quant_with_min_max_args),
    "quantize_channel": (
        [V],
        lambda x: tf.quantization.fake_quant_with_min_max_vars_per_channel(x, tf.zeros([4]), tf.ones([4])),
    ),
    "dequantize": ([V], lambda x: tf.quantization.quantize_and_dequantize_v2(x, -1.0, 1.0, range_given=True)),
    "bucketize": ([V], lambda x: raw.Bucketize(input=x, boundaries=[0.0, 1.0])),
    "clip": ([V], lambda x: tf.clip_by_value(x, 0, 1)),
    "search": ([V], lambda x: tf.searchsorted(x, tf.ones([3, 1]))),
    "histogram": ([V], lambda x: tf.histogram_fixed_width(x, [0.0, 1.0], 5)),
    "cross": ([([None, 3], FLOAT)], lambda x: tf.linalg.cross(x, x)),
    "select": ([V], lambda x: tf.where(x > 0, x, 0.0)),
    "select_v1": ([V], lambda x: raw.Select(condition=tf.reduce_any(x > 0, 1), x=x, y=x)),
    "igamma": ([V], lambda x: math.igamma(x, x)),
    "ensure": ([V], lambda x: tf.ensure_shape(x, [None, 4])),
    "cast": ([V], lambda x: tf.cast(x, INT)),
    "bitcast": ([V], lambda x: tf.bitcast(x, tf.uint8)),
    "range": ([N], lambda x: tf.range(tf.size(x))),
    "unravel": ([N], lambda x: tf.unravel_index(x, [3, 3])),
    "invert": ([N], math.invert_permutation),
    "partition": ([V], lambda x: tf.dynamic_partition(x, [0, 1, 0], 2)[0]),
    "stitch": ([V], lambda x: tf.dynamic_stitch([[0], [1]], [x, x])),
    "words": ([T], lambda x: tf.strings.split(x).to_tensor()),
    "hash": ([T], lambda x: tf.strings.to_hash_bucket_fast(x, 9)),
    "joined": ([T], lambda x: tf.strings.join([x, x])),
    "substr": ([T], lambda x: tf.strings.substr(x, 0, 1)),
    "regex": ([T], lambda x: tf.strings.regex_replace(x, "a", "b")),
    "ngrams": ([T], lambda x: tf.strings.ngrams(tf.RaggedTensor.from_tensor(x[:, None]), 1).to_tensor()),
    "unicode": ([T], lambda x: tf.strings.unicode_decode(x, "UTF-8").to_tensor()),
    "decode": ([T], tf.io.decode_base64),
    "csv": ([T], lambda x: tf.io.decode_csv(x, [[0.0]])),
    "examples": ([T], _examples),
    "edit": ([T], lambda x: tf.edit_distance(tf.sparse.from_dense(x), tf.sparse.from_dense(x))),
    "sparse": ([V], _sparse),
    "ragged": ([V], _ragged),
    "called": ([V], _called),
    "loop": ([V], _loop),
    "scan": ([V], _scan),
    "mapped": ([V], _mapped),
    "branch": ([V], lambda x: tf.cond(tf.reduce_any(x > 0), lambda: x, lambda: tf.zeros_like(x))),
    "lstm": ([V], _lstm),
    "block_lstm": ([([None, 2, 4], FLOAT)], _block_lstm),
    "fixed": ([([2, 4], FLOAT)], lambda x: tf.reshape(x, [8]) * 2.0),
    "fixed_shape": ([([2, 4], FLOAT)], lambda x: tf.zeros(tf.raw_ops.Shape(input=x)) + x),
    "fixed_call": ([([2, 4], FLOAT)], _called),
    "ema": ([V], lambda x: tf.stack([x[:, at] for at in range(4)], 1)),
    "count": ([V], math.count_nonzero),
    "moments": ([V], lambda x: nn.moments(x, [1])[0]),
    "embedding": ([([None, 3], INT)], lambda x: nn.embedding_lookup(W, x)),
    "attention": ([([None, 4, 4], FLOAT)], lambda x: tf.matmul(nn.softmax(tf.matmul(x, x, transpose_b=True)), x)),
}


def main(seed: int, count: int, names: list[str]) -> None:
    logging.disable()
    chance = random.Random(seed)
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    answered, refused, left_out = 0, 0, []
    for name in names or KINDS:
        try:
            resident = made(*KINDS[name])
        except Exception as error:  # noqa: BLE001, of this TensorFlow it cannot be made
            left_out.append(f"{name} ({str(error).splitlines()[0][:80]})")
            continue
        for _ in range(count):
            question = asked(resident, chance)
            sys.stderr.write(f"{name} { ({key: one.shape for key, one in question.inputs.items()}) }\n")
            try:
                execute.answer(question)
                answered += 1
            except (RequestError, tf.errors.ResourceExhaustedError):
                refused += 1
            except tf.errors.OpError:
                if not question.fits:  # else it is what any graph may say
                    raise
                refused += 1
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - began
            assert grown < MEMORY, f"{grown} bytes more"
    sys.stdout.write(f"{len(names or KINDS) - len(left_out)} kinds: {answered} answered, {refused} refused\n")
    sys.stdout.write(f"left out: {', '.join(left_out) or 'none'}\n")


def made(specs: Sequence[tuple[Sequence[int | None], tf.DType]], function: Callable[..., Any]) -> Resident:
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(shape, dtype, f"x{at}") for at, (shape, dtype) in enumerate(specs)])
        def __call__(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            found = tf.nest.flatten(function(*inputs))
            return {f"y{at}": one for at, one in enumerate(found)}

    found = capture(Model())
    version = Version(number=1, step=1, prefix="c", graph=found.graph.digest, step_done_at=1.0, snapshot_at=1.0)
    return Resident(version, found.graph, ())


def asked(resident: Resident, chance: random.Random) -> Question:
    specs = resident.graph.signatures["serving_default"].inputs
    inputs = {name: values(spec.dtype, shape(spec.shape, chance), chance) for name, spec in specs.items()}
    return Question("m", resident, "serving_default", inputs, fits=resident.graph.fits("serving_default", inputs))


def shape(like: Any, chance: random.Random) -> tuple[int, ...]:
    """Of any rank, or nearly that of the signature; sometimes none of a huge number."""
    if chance.random() < 0.5:
        sizes = [chance.choice((0, 1, 2, 3, 4, 5, 17, 1 << 15)) for _ in range(chance.randrange(9))]
    else:
        sizes = [chance.choice((0, 1, 2, 3)) if size is None or chance.random() < 0.3 else size for size in like or ()]
        chance.choice(
            (lambda: None, lambda: sizes.append(1), lambda: sizes and sizes.pop(), lambda: sizes.insert(0, 1))
        )()
    if 0 in sizes and chance.random() < 0.3:
        sizes = [size or chance.choice((0, 1 << 20)) for size in sizes] + [0]
    while np.prod(sizes, dtype=float) > ELEMENTS or np.prod([one for one in sizes if one], dtype=float) > ADDRESSABLE:
        sizes.remove(max(sizes))
    return tuple(sizes)


def values(dtype: str, shape: tuple[int, ...], chance: random.Random) -> Any:
    random_values = np.random.default_rng(chance.randrange(1 << 30))
    if dtype == "string":
        return random_values.choice(np.array([b"", b"a b", b"1.5", b"YQ=="], object), shape)
    if dtype == "int32":
        return random_values.integers(-2, 9, shape).astype(np.int32)
    return random_values.standard_normal(shape).astype(dtype)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
