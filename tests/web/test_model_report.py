"""The page to keep: who uses the atoms, and every answer in the table."""

import pytest

from histodict.pipeline import TissueClassifier
from histodict.pipeline.gallery import Gallery
from histodict.web.model_report import atom_users, write_report


@pytest.mark.parametrize("components", [0, 6])
def test_the_report_shows_who_uses_the_atoms(recipe, manifest, tmp_path, components):
    """Whether atoms are pictures or, as here those of components, are none."""
    model = TissueClassifier(recipe.with_changes(components=components)).fit(manifest)
    gallery = Gallery.of(model.model_, manifest.records, 0)
    users = atom_users(model, gallery, manifest)
    results = {"images": [], "operating_point": None}
    write_report(tmp_path / "report.html", model, [], results, {}, tmp_path, users)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    n_atoms = sum(len(group["rows"]) for group in users)
    assert text.count('class="atom-picture"') == (0 if components else n_atoms)
    assert text.count('<div class="atom-users"') == n_atoms == 16
    assert ('alt="atoms of healthy"' in text) == (components == 0)
    assert f'title="{manifest.name(manifest.records[0])}: ' in text
    assert atom_users(model, None, manifest) == []
