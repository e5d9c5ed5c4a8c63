"""Tests of timm encoders with tiny random networks: shape, orientation and normalisation of
features."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from histodict.encoders import get_patch_features, load_encoder, needs_no_consent
from histodict.encoders.encoder import clear_encoder_cache
from histodict.encoders.torch_encoder import cut_windows, join_maps, pad_to_side, window_starts
from histodict.models import TissueClassifier
from histodict.models.recipe import Recipe
from tests.images.files import tissue

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# The torchvision of PyPI is built for another PyTorch than that without CUDA: it lacks operators
# that are not used here, but whose existence it checks.
OPERATORS = """
import torch
try:
    import torchvision
except RuntimeError:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
SMALL = {
    "cnn": ("resnet18", {"channels": [8, 8, 16, 16]}),
    "vit": (
        "vit_small_patch14_reg4_dinov2",
        {"img_size": 56, "embed_dim": 24, "depth": 2, "num_heads": 3},
    ),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {
            "img_size": 64,
            "window_size": 2,
            "embed_dim": 12,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 1, 2, 2],
        },
    ),
}
# Pixels per position and positions per window; a convolutional network has no windows.
SHAPES = {"cnn": (32, None), "vit": (14, 4), "swin": (32, 2)}
MEAN, STD = (0.7, 0.5, 0.6), (0.2, 0.25, 0.1)


@pytest.fixture(scope="module")
def timm():
    pytest.importorskip("torchvision", reason="torchvision is not installed", exc_type=ImportError)
    return pytest.importorskip("timm", reason="timm is not installed")


@pytest.fixture(scope="module", autouse=True)
def operators():
    names: dict[str, object] = {}
    exec(OPERATORS, names)
    yield names
    clear_encoder_cache()


@pytest.fixture(scope="module", params=SMALL)
def saved(request, timm, tmp_path_factory):
    """Save a folder like the hub: a configuration with its own mean, and weights."""
    return request.param, *save_model(timm, tmp_path_factory.mktemp("models"), request.param)


def save_model(timm, folder, kind):
    from safetensors.torch import save_file

    name, arguments = SMALL[kind]
    torch.manual_seed(0)
    module = timm.create_model(name, pretrained=False, num_classes=0, **arguments).eval()
    if kind != "cnn":  # freshly created small networks hardly distinguish positions
        for weight in module.parameters():
            torch.nn.init.normal_(weight, std=0.3 if weight.ndim > 1 else 0.1)
    side = arguments.get("img_size", 224)
    content = {
        "architecture": name,
        "num_classes": 0,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, side, side],
            "mean": MEAN,
            "std": STD,
            "num_classes": 0,
            "fixed_input_size": kind != "cnn",
        },
    }
    (folder / "config.json").write_text(json.dumps(content))
    save_file(module.state_dict(), folder / "model.safetensors")
    return folder, module


def test_maps_have_a_vector_for_every_position(saved, rng):
    kind, folder, _ = saved
    encoder = load_encoder(f"timm:local-dir:{folder}")
    cell_px, n_window = SHAPES[kind]
    assert encoder.stride_px == cell_px
    assert encoder.window_px == (n_window and n_window * cell_px)
    for rows, columns in ((5, 7), (2, 9), (1, 1), (8, 8)):
        area = rng.integers(0, 255, (rows * cell_px, columns * cell_px, 3), dtype=np.uint8)
        cells = encoder.feature_map(area)
        assert cells.shape[:2] == (rows, columns) and cells.dtype == np.float32
        assert np.isfinite(cells).all()


@pytest.mark.parametrize("place", [(0, 0), (0, 6), (4, 0), (4, 6), (1, 4)])
def test_features_keep_their_corner(saved, rng, place):
    kind, folder, _ = saved
    encoder = load_encoder(f"timm:local-dir:{folder}")
    px = encoder.stride_px
    plain = rng.integers(120, 200, (5 * px, 7 * px, 3), dtype=np.uint8)
    coloured = plain.copy()
    row, column = place
    coloured[row * px : (row + 1) * px, column * px : (column + 1) * px] = (10, 240, 10)
    change = np.linalg.norm(encoder.feature_map(coloured) - encoder.feature_map(plain), axis=2)
    found = np.unravel_index(change.argmax(), change.shape)
    # The field of view of a convolutional network is large.
    assert np.abs(np.subtract(found, place)).max() <= (1 if kind == "cnn" else 0)


def test_pixels_are_normalised_by_the_configuration(saved):
    """An image of the mean colour is zero after normalisation."""
    kind, folder, module = saved
    encoder = load_encoder(f"timm:local-dir:{folder}")
    side = encoder.window_px or 64
    colours = np.array([[255 * m, 255 * (m + s)] for m, s in zip(MEAN, STD, strict=True)])
    for at, level in enumerate((0.0, 1.0)):
        rounded = np.rint(colours[:, at])
        off = (rounded / 255 - np.array(MEAN)) / np.array(STD)
        assert np.abs(off - level).max() < 0.02
        batch = torch.tensor(off, dtype=torch.float32).view(1, 3, 1, 1).expand(1, 3, side, side)
        norm = {} if kind == "cnn" else {"norm": True}
        with torch.inference_mode():
            (expected,) = module.forward_intermediates(
                batch, indices=1, intermediates_only=True, output_fmt="NCHW", **norm
            )
        pixels = np.broadcast_to(rounded.astype(np.uint8), (side, side, 3))
        found = encoder.feature_map(pixels).transpose(2, 0, 1)
        np.testing.assert_allclose(found, expected[0].numpy(), atol=2e-4, rtol=1e-3)


def test_windows_are_processed_independently(saved, rng):
    """If an area consists of complete windows, its features are those of each window alone."""
    _, folder, _ = saved
    encoder = load_encoder(f"timm:local-dir:{folder}")
    side = encoder.window_px
    if side is None:
        pytest.skip("a convolutional network sees the area at once")
    area = rng.integers(0, 255, (2 * side, 3 * side, 3), dtype=np.uint8)
    cells, n = encoder.feature_map(area), side // encoder.stride_px
    for y in range(2):
        for x in range(3):
            alone = encoder.feature_map(area[y * side : (y + 1) * side, x * side : (x + 1) * side])
            joined = cells[y * n : (y + 1) * n, x * n : (x + 1) * n]
            np.testing.assert_allclose(joined, alone, atol=1e-4)


def test_batch_size_does_not_change_the_result(saved, rng, monkeypatch):
    from histodict.encoders import torch_encoder

    _, folder, _ = saved
    encoder = load_encoder(f"timm:local-dir:{folder}")
    px = encoder.stride_px
    area = rng.integers(0, 255, (5 * px, 9 * px, 3), dtype=np.uint8)
    cells = encoder.feature_map(area)
    monkeypatch.setattr(torch_encoder, "_BATCH_PX", 1)
    np.testing.assert_allclose(encoder.feature_map(area), cells, atol=1e-4)


def test_training_and_prediction_with_tokens(timm, tmp_path, rng):
    """Train and predict; the cells of the map are tokens."""
    folder, _ = save_model(timm, tmp_path, "vit")
    for label in ("a", "b"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for place in range(2):
            pixels = tissue(rng, 14 * 9, 14 * 11)
            oriented = pixels if label == "a" else pixels[:, :, ::-1]
            Image.fromarray(oriented).save(tmp_path / "set" / label / f"{place}.png")
    recipe = Recipe(
        method_parameters={"n_atoms": 4, "n_iter": 2},
        features=f"timm:local-dir:{folder}",
        patch_px=14,
        patches_per_class=60,
        aggregation="proportion",
    )
    with pytest.warns(UserWarning, match="no patient"):
        model = TissueClassifier(recipe, random_state=0).fit(tmp_path / "set")
    prediction = model.predict(tmp_path / "set" / "a" / "0.png")
    assert prediction.patch_map.predicted_classes.shape == (9, 11)


# --- names --------------------------------------------------------------------------------------


def test_hub_name_is_loaded_from_the_cache(timm, tmp_path, monkeypatch):
    """Offline, from the folder of a download."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache = tmp_path / "models--owner--name"
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    save_model(timm, snapshot, "vit")
    encoder = load_encoder("hf-hub:owner/name")
    assert encoder.feature_map(np.zeros((70, 84, 3), np.uint8)).shape == (5, 6, 24)
    text = r"the weights of hf-hub:owner/other cannot be downloaded.*hf auth login.*timm:local-dir"
    with pytest.raises(ValueError, match=text):
        load_encoder("hf-hub:owner/other")


def test_model_arguments_are_read_from_the_query(timm, tmp_path):
    name = "vit_tiny_patch16_224"
    arguments = {"img_size": 32, "depth": 1, "embed_dim": 12, "num_heads": 2}
    layer = timm.layers.SwiGLUPacked
    module = timm.create_model(name, pretrained=False, mlp_layer=layer, **arguments)
    torch.save(module.state_dict(), tmp_path / "w.pth")
    query = "&".join(f"{key}={value}" for key, value in arguments.items())
    encoder = load_encoder(f"timm:{name}@{tmp_path / 'w.pth'}?{query}&mlp_layer=SwiGLUPacked")
    assert (encoder.stride_px, encoder.window_px) == (16, 32)
    with pytest.raises(ValueError, match=r"mlp_layer=os.system: layer not found in timm.layers"):
        load_encoder(f"timm:{name}?mlp_layer=os.system")
    with pytest.raises(
        ValueError, match=r"timm cannot create 'vit_tiny_patch16_224' with .*colour"
    ):
        load_encoder(f"timm:{name}@{tmp_path / 'w.pth'}?colour=2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notamodel", r"Unknown model \(notamodel\)\. timm\.list_models\(\) lists all names"),
        ("resnet81", r"did you mean resnet18"),
        ("resnet18.nosuchtag", "nosuchtag"),
        ("", "Unknown model"),
    ],
)
def test_unknown_timm_name_is_refused(timm, name, message):
    with pytest.raises(ValueError, match=message):
        load_encoder(f"timm:{name}")


def test_weights_of_another_model_are_refused_in_one_line(timm, tmp_path):
    (tmp_path / "bad.pt").write_bytes(b"abc")
    torch.save({"other": torch.zeros(3)}, tmp_path / "other.pt")
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "shape.pt")
    for file, text in (
        ("bad.pt", "or damaged"),
        ("other.pt", r"100 of 120 arrays are missing \(conv1.weight, \S+, \S+, …\)$"),
        ("shape.pt", "size mismatch for conv1.weight"),
    ):
        with pytest.raises(ValueError, match=f"{file}: not the weights of.*{text}") as found:
            load_encoder(f"timm:resnet18@{tmp_path / file}")
        assert len(str(found.value)) < 800 and "\n" not in str(found.value)


def test_name_prefixes():
    assert not get_patch_features("hf-hub:owner/name").atoms_are_images
    assert not needs_no_consent("hf-hub:owner/never-opened")


# --- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8, 12, 16, 20, 36])
def test_windows_cover_a_length(length):
    starts = window_starts(length, 8)
    covered = {at for start in starts for at in range(start, start + 8)}
    assert set(range(length)) == covered
    assert len(starts) == -(-length // 8)


@pytest.mark.parametrize("shape", [(8, 8), (12, 20), (4, 20), (20, 8), (4, 4)])
def test_features_return_to_their_positions(rng, shape):
    """Each feature vector is the mean of its own position, for any windows."""
    pixels = rng.integers(0, 255, (*shape, 3), dtype=np.uint8)
    corners, windows = cut_windows(pad_to_side(pixels, 8), 8)
    maps = windows.reshape(len(windows), 4, 2, 4, 2, 3).mean(axis=(2, 4)).astype(np.float32)
    expected = pixels.reshape(shape[0] // 2, 2, shape[1] // 2, 2, 3).mean(axis=(1, 3))
    found = join_maps(corners, maps, 2, (shape[0] // 2, shape[1] // 2))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_timm_models_load_from_a_local_file(timm, tmp_path):
    name = "test_resnet"
    torch.save(timm.create_model(name, pretrained=False).state_dict(), tmp_path / "w.pth")
    encoder = load_encoder(f"timm:{name}@{tmp_path / 'w.pth'}")
    cells = encoder.feature_map(
        np.zeros((4 * encoder.stride_px, 2 * encoder.stride_px, 3), np.uint8)
    )
    assert cells.shape[:2] == (4, 2)
    torch.save({"nothing": torch.zeros(1)}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="not the weights of"):
        load_encoder(f"timm:{name}@{tmp_path / 'x.pth'}")
    with pytest.raises(ValueError, match="not found"):
        load_encoder(f"timm:{name}@{tmp_path / 'none.pth'}")
