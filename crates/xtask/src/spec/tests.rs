use super::history::History;
use super::{bare, render};

const ROWS: &str = r#"{"bench":"stream","case":"c","peer":"runnel","mode":"push","link":"lan","metric":"wall","unit":"s","median":9,"min":1,"max":3,"n":5,"commit":"0123456789"}
{"bench":"stream","case":"c","peer":"runnel","mode":"push","link":"lan","metric":"wall","unit":"s","median":1.5,"min":1,"max":3,"n":5,"commit":"abcdef0123"}
{"bench":"stream","case":"c","peer":"nfs","mode":"cold","link":"lan","metric":"wall","unit":"s","median":3,"min":1,"max":3,"n":4,"commit":"abcdef0123"}
{"bench":"lab","commit":"fedcba9876","rows":{"start lan nfs perl":{"cold":2},"start lan nfs gcc":{"cold":1}},"runs":{"start lan nfs perl":3,"start lan nfs gcc":2}}
{"bench":"lab","commit":"fedcba9876","rows":{"cut wifi nfs perl":{"cuts":7,"total":7,"mount_rx_bytes":700}},"runs":{"cut wifi nfs perl":1}}
{"bench":"hand","case":"size","text":"7 MB","n":null,"commit":"1111111111","by_hand":true,"codec":"zstd 19"}"#;

const CODECS: &str = r#"{"bench":"stream","peer":"runnel","codec":"zstd"}
{"bench":"stream","peer":"nfs","codec":"none"}
{"bench":"lab","peer":"nfs","codec":"none"}"#;

fn page(template: &str) -> anyhow::Result<String> {
    render(template, &History::parse(ROWS, CODECS)?)
}

#[test]
fn a_figure_is_computed_from_its_rows_and_each_row_is_a_source() -> anyhow::Result<()> {
    let template = "\
| promise | measured |
|---|---|
| at least 10 % | {{lower stream c runnel push lan wall | stream c nfs cold lan wall}} |

A size of {{hand size}} at {=64 KiB}, or {{value lab start lan nfs perl,gcc cold}}.

{{sources}}
";
    let page = page(template)?;
    let body = page.split_once("\n\n").map_or("", |(_, body)| body);
    let expected = "\
| promise | measured |
|---|---|
| at least 10 %<sup>[1](#s1)</sup> | 50 % lower |

A size of 7 MB<sup>[2](#s2)</sup> at 64 KiB, or 2.00 s, 1.00 s<sup>[3](#s3)</sup>.

| | row | value | n | commit | codec |
|---|---|---|---|---|---|
| <a id=\"s1\"></a>1 | `stream c runnel push lan wall` | 1.50 s | 5 | abcdef0 | zstd |
|  | `stream c nfs cold lan wall` | 3.00 s | 4 | abcdef0 | none |
| <a id=\"s2\"></a>2 | by hand: `size` | as said | ? | 1111111 | zstd 19 |
| <a id=\"s3\"></a>3 | `lab start lan nfs perl, gcc cold` | 2.00 s, 1.00 s | 3, 2 | fedcba9 | none |
";
    assert_eq!(body, expected);
    Ok(())
}

#[test]
fn another_field_and_an_older_row_are_named() -> anyhow::Result<()> {
    let page = page(
        "From {{num stream c runnel push lan wall@min,wall@max}}, once {{num stream#0123 c runnel push lan wall}}.\n",
    )?;
    assert!(page.contains("From 1.00, 3.00<sup>") && page.contains("once 9.00<sup>"), "{page}");
    Ok(())
}

#[test]
fn what_the_lab_counts_has_no_unit_of_time() -> anyhow::Result<()> {
    let values =
        ["cuts", "mount_rx_bytes", "total"].map(|value| format!("{{{{value lab cut wifi nfs perl {value}}}}}"));
    let page = page(&format!("{}\n", values.join("; ")))?;
    let shown: Vec<&str> = page.lines().last().unwrap_or_default().split("; ").collect();
    let shown = shown.iter().map(|figure| figure.split("<sup>").next().unwrap_or_default());
    assert_eq!(shown.collect::<Vec<_>>(), ["7", "700 B", "7.00 s"]);
    Ok(())
}

#[test]
fn what_has_no_row_is_an_error() {
    for (template, expected) in [
        ("It takes 3 s.\n", "'3'"),
        ("It takes {{value stream c runnel push wan wall}}.\n", "no row"),
        ("It takes {{hand weight}}.\n", "by hand"),
        ("It takes {{guess stream c runnel push lan wall}}.\n", "guess"),
        ("It takes {{value stream c}}.\n", "six"),
    ] {
        let error = format!("{:#}", page(template).expect_err(template));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn numbers_are_bare_outside_marks_code_and_demands() {
    let template = "\
# Images

Linux {=6.12}, `gcc 12`, x86-64 and python-200 take 2.5x.

| promise | measured |
|---|---|
| 64 KiB | 47.83 MB |
";
    let found = bare::numbers(template);
    let words: Vec<&str> = found.iter().filter_map(|line| line.split('\'').nth(1)).collect();
    assert_eq!(words, ["2.5x.", "47.83"]);
}
