"""Order of the slow test files: they start first, so that no process runs one of them alone at the
end.

Most of the time is spent in these files, which run complete commands, trainings, servers and
browsers.
"""

from __future__ import annotations

# By duration, from 60 s down to 5 s.
SLOW = (
    "data/test_same_predictions.py",
    "test_first_hour.py",
    "attacks/test_smoke.py",
    "utils/test_dask_executor.py",
    "web/test_jobs.py",
    "paper/test_paper.py",
    "web/test_browser.py",
    "web/test_browser_annotation.py",
    "web/test_browser_statements.py",
    "web/test_browser_maps.py",
    "test_slides.py",
    "test_sklearn_contract.py",
    "cli/test_bad_input.py",
    "cli/test_unusual_files.py",
    "evaluation/test_evaluation.py",
    "test_public_names.py",
    "attacks/test_chaos.py",
    "test_slide_memory.py",
    "models/test_bounded_slides.py",
    "cli/test_predict.py",
    "cli/test_signals.py",
    "models/test_region_detector.py",
    "models/test_outlines.py",
    "cli/test_features.py",
    "methods/test_dfdl.py",
    "synthetic/test_run.py",
    "reports/test_positions.py",
    "methods/test_lcksvd.py",
    "web/test_browser_errors.py",
    "web/test_api_viewer.py",
    "test_methods_on_images.py",
    "models/test_ensemble.py",
    "web/test_annotations.py",
    "images/test_source.py",
    "models/test_feature_files.py",
    "web/test_damage.py",
    "preprocessing/test_quality.py",
    "cli/test_adapt.py",
    "web/test_browser_models.py",
    "web/test_shutdown.py",
    "patches/test_stored.py",
    "web/test_browser_large_sets.py",
    "kernels/test_gpu.py",
    "models/test_python_api.py",
    "metrics/test_intervals.py",
    "models/test_run_cache.py",
    "reports/test_evaluation_page.py",
    "cli/test_predict_table.py",
    "images/test_slide_reader.py",
    "web/test_serve.py",
    "models/test_tissue_classifier.py",
    "dictionaries/test_online.py",
    "preprocessing/test_background.py",
    "web/test_browser_images.py",
    "images/test_ome.py",
    "reports/test_atoms_page.py",
    "dictionaries/test_ksvd.py",
    "methods/test_fddl.py",
    "methods/test_nayak.py",
    "metrics/test_comparison.py",
    "cli/test_edit_atoms.py",
    "cli/test_train.py",
    "attacks/test_fuzz.py",
    "web/test_tiles.py",
    "kernels/test_joint.py",
    "explain/test_atom_statistics.py",
    "synthetic/test_sets.py",
    "preprocessing/test_stain.py",
    "methods/test_atom_steps.py",
    "utils/test_local.py",
)
_PLACES = {name: place for place, name in enumerate(SLOW)}


def place_of(name: str) -> int:
    """Return the position in the order of test files; equal for all fast files."""
    return _PLACES.get(name, len(_PLACES))
