//! Tests of published tables against predictions, lower bounds and held-out fits, and of invalid manifests.

use std::path::{Path, PathBuf};

use super::{ExchangeMeasurement, HeldOutRow, compare, hold_out, is_manifest, load};
use crate::compare::Summary;

fn shipped() -> Vec<ExchangeMeasurement> {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/clusters/ep/manifest.toml")).unwrap()
}

/// Writes a manifest and a table to a folder and loads them.
fn load_written(folder: &Path, manifest: &str, table: &str) -> Result<Vec<ExchangeMeasurement>, String> {
    let path: PathBuf = folder.join("manifest.toml");
    std::fs::write(&path, manifest).unwrap();
    std::fs::write(folder.join("table.csv"), table).unwrap();
    load(&path).map_err(|error| error.to_string())
}

/// No published time is below the lower bound, which depends neither on costs nor on efficiencies.
#[test]
fn published_times_are_above_the_bound() {
    let comparison = compare(&shipped(), None).unwrap();
    assert!(comparison.rows.len() > 1500);
    for row in &comparison.rows {
        assert!(row.bound <= row.measured, "{row:?}");
        assert!(row.bound <= row.predicted, "{row:?}");
    }
}

/// The errors of rows predicted with costs fitted without their cluster are within the project's goals: 15 % in the
/// median and 40 % at the 90th percentile of all rows.
#[test]
fn held_out_clusters_are_within_the_goals() {
    let held_out = hold_out(&shipped()).unwrap();
    assert_eq!(held_out.len(), 7);
    let rows = held_out.iter().flat_map(|cluster| &cluster.rows);
    let summary = Summary::from_errors(rows.map(HeldOutRow::error));
    assert!(summary.median <= 0.15 && summary.p90 <= 0.40, "{summary:?}");
}

#[test]
fn rows_are_selected_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = r#"
        [[exchange]]
        file = "table.csv"
        fabric = "hgx-h100"
        kernel = "deepep-ll"
        operation = "dispatch"
        dtype = "fp8"
        time_us = "us"
        ranks = "ep"
        tokens = "tokens"
        hidden = 7168
        experts = 256
        top_k = 8
        where = { op = "dispatch" }
    "#;
    assert!(is_manifest(manifest));
    let table = "# source\nep,tokens,op,us\n8,128,dispatch,40\n16,128,dispatch,102\n16,128,combine,186\n";
    let loaded = load_written(folder.path(), manifest, table).unwrap();
    let rows: Vec<_> = loaded[0].rows.iter().map(|row| (row.line, row.fabric.gpus().len())).collect();
    assert_eq!(rows, [(3, 8), (4, 16)]);

    let uneven = load_written(folder.path(), manifest, "ep,tokens,op,us\n12,128,dispatch,40\n").unwrap_err();
    assert!(uneven.contains("table.csv:2") && uneven.contains("12 ranks do not fill hosts of 8 GPUs"), "{uneven}");
    let empty = load_written(folder.path(), manifest, "ep,tokens,op,us\n8,1,combine,40\n").unwrap_err();
    assert!(empty.contains("selects no row"), "{empty}");
    let negative = load_written(folder.path(), manifest, "ep,tokens,op,us\n8,1,dispatch,-4\n").unwrap_err();
    assert!(negative.contains("`-4` is not a measured value above 0 and at most 1e12 (us)"), "{negative}");
    let unknown = load_written(folder.path(), &manifest.replace("top_k", "topk"), table).unwrap_err();
    assert!(unknown.contains("topk"), "{unknown}");
    let kernel = load_written(folder.path(), &manifest.replace("deepep-ll", "deepep-lx"), table).unwrap_err();
    assert!(kernel.contains("deepep-ll"), "{kernel}");
}
