//! The whole report: complete, empty, and of poor records.

use std::collections::BTreeSet;
use std::fs;

use super::*;
use crate::lab::plan::Row;

/// Largest report of a full run, bytes.
const REPORT_BYTES_MAX: usize = 1_000_000;

/// Set to a path, this test variable leaves the report of the invented run there, to be looked at.
const SAMPLE_VARIABLE: &str = "RUNNEL_REPORT_SAMPLE";

fn written(records: &[Record], pages: &PageLists, about: &About) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("report.html");
    write(records, pages, about, &path)?;
    Ok(fs::read_to_string(&path)?)
}

/// What no report may have: numbers that are none, open elements, anchors without a target,
/// anything from outside.
fn check(html: &str) {
    for bad in ["NaN", "inf", "-0 ", "<script", "http:", "https:", "url(", "src=\"", "@import"] {
        let found = html.find(bad).map(|at| &html[at.saturating_sub(60)..(at + 60).min(html.len())]);
        // "inf" is part of words; as a number it follows a space, a quote or a tag.
        if bad == "inf" {
            assert!(!html.contains(">inf") && !html.contains("\"inf") && !html.contains(" inf "), "{found:?}");
        } else {
            assert_eq!(found, None, "{bad}");
        }
    }
    for element in ["svg", "table", "details", "section", "figure", "div", "dl", "text", "ul", "ol", "main", "p", "td"]
    {
        let open = html.matches(&format!("<{element}>")).count() + html.matches(&format!("<{element} ")).count();
        assert_eq!(open, html.matches(&format!("</{element}>")).count(), "{element}");
    }
    let after = |mark: &str| -> Vec<&str> {
        html.split(mark).skip(1).filter_map(|rest| rest.split('"').next()).collect::<Vec<_>>()
    };
    let anchors = after(" id=\"");
    let unique: BTreeSet<&str> = anchors.iter().copied().collect();
    assert_eq!(unique.len(), anchors.len());
    for target in after("href=\"#") {
        assert!(unique.contains(target), "{target}");
    }
}

#[test]
fn every_figure_shows_a_full_run() -> anyhow::Result<()> {
    let (records, pages) = (synthetic::records(), synthetic::pages());
    let measured = Measured::new(&records, &pages);
    for figure in figure::all(&measured) {
        assert!(figure.is_measured(), "{}", figure.id);
        assert!(figure.body.contains("<table>"), "{}", figure.id);
        let drawn = figure.body.contains("<svg");
        assert!(drawn || ["bars", "first-starts", "siblings"].contains(&figure.id), "{}", figure.id);
        assert!(!figure.ours.is_empty() && !figure.paper.is_empty(), "{}", figure.id);
    }
    for target in target::all(&measured) {
        assert_ne!(target.verdict(), Verdict::NotMeasured, "{}", target.name);
    }
    let html = written(&records, &pages, &synthetic::about())?;
    check(&html);
    assert!(html.len() < REPORT_BYTES_MAX, "{} bytes", html.len());
    assert!(html.contains("Invented CPU &lt;4000&gt;") && html.contains("tests &amp; eyes"));
    if let Some(path) = std::env::var_os(SAMPLE_VARIABLE) {
        fs::write(path, &html)?;
    }
    Ok(())
}

#[test]
fn an_empty_run_leaves_notes() -> anyhow::Result<()> {
    let pages = PageLists::new();
    let html = written(&[], &pages, &About::default())?;
    check(&html);
    let figures = figure::all(&Measured::new(&[], &pages));
    assert_eq!(html.matches("Not measured in this run.").count(), figures.len());
    assert!(figures.iter().all(|figure| !figure.is_measured()));
    assert!(tables(&[], &PageLists::new()).contains("not measured"));
    Ok(())
}

#[test]
fn poor_records_make_no_poor_report() -> anyhow::Result<()> {
    let pages = PageLists::from([("perl".to_string(), vec![("/a".to_string(), 0)])]);
    let mut records = synthetic::records();
    for (index, record) in records.iter_mut().enumerate() {
        let poor = [0.0, f64::NAN, f64::INFINITY, -1.0, f64::MAX, 5e-324, -1e308, 1e29][index % 8];
        record.values.values_mut().for_each(|value| *value = poor);
        record.series.values_mut().for_each(|series| series.iter_mut().for_each(|value| *value = poor));
    }
    check(&written(&records, &pages, &About::default())?);

    // Every row poor in the same way, and a page list that ends at the end of numbers.
    let last = PageLists::from([("perl".to_string(), vec![("/a".to_string(), u64::MAX), ("/b".to_string(), 7)])]);
    for poor in [0.0, -1.0, f64::MAX, 5e-324, -1e308, 1e30, 1e-30] {
        let mut records = synthetic::records();
        for record in &mut records {
            record.values.values_mut().for_each(|value| *value = poor);
            record.series.values_mut().for_each(|series| series.iter_mut().for_each(|value| *value = poor));
        }
        check(&written(&records, &last, &About::default())?);
    }

    // One record at a time: whatever a row lacks beside it.
    for record in synthetic::records().into_iter().step_by(23) {
        check(&written(&[record], &pages, &About::default())?);
    }

    // Names from a plan of a user.
    let evil = "<script>\"&'";
    let [link, system, mode, program] = [evil, evil, evil, evil].map(str::to_string);
    for experiment in ["start", "first", "mount", "touch", "page", "set", "cache", "energy"] {
        let row = Row {
            experiment: experiment.into(),
            link: link.clone(),
            system: system.clone(),
            mode: mode.clone(),
            program: program.clone(),
        };
        let names = [
            "cold",
            "mean",
            "total",
            "map",
            "middle",
            "io",
            "pages_total",
            "pages_needed",
            "pages_read",
            "radio_on_200ms",
            "device_busy",
        ];
        let values = names.map(|name| (name.to_string(), 1.0)).into();
        check(&written(&[Record { row, run: 1, values, ..Record::default() }], &pages, &About::default())?);
    }
    Ok(())
}

#[test]
fn the_terminal_gets_bars_and_start_times() {
    let text = tables(&synthetic::records(), &synthetic::pages());
    if std::env::var_os(SAMPLE_VARIABLE).is_some() {
        println!("{text}");
    }
    let first = text.lines().next().unwrap_or("");
    assert!(first.contains("bar") && first.contains("verdict"), "{first}");
    assert!(
        text.contains("cold start, wifi+1%") && text.contains("runnel:learned") && text.contains("MISSED"),
        "{text}"
    );
    assert!(!text.contains("NaN"), "{text}");
}
