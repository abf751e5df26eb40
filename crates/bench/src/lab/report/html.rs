//! The page: its summary, contents and figures.

use std::fmt::Write;

use super::About;
use super::figure::{self, Figure};
use super::measured::Measured;
use super::target::{self, Target, Verdict};
use super::text;
pub use report::html::{Cell, Table, escape};

/// The whole report.
pub fn page(measured: &Measured, about: &About) -> String {
    let figures = figure::all(measured);
    let targets = target::all(measured);
    let mut html = report::html::head(&format!("Runnel lab, {} at {}", about.date, about.commit));
    html.push_str(&header(about));
    html.push_str(&summary(&targets));
    html.push_str("<nav aria-label=\"Contents\"><h2>Contents</h2><ol>\n");
    for figure in &figures {
        let missing = if figure.is_measured() { "" } else { " <small>not measured</small>" };
        let _ = writeln!(html, "<li><a href=\"#{}\">{}</a>{missing}</li>", figure.id, escape(&figure.title));
    }
    html.push_str("</ol></nav>\n<main>\n");
    for figure in &figures {
        html.push_str(&section(figure));
    }
    html.push_str("</main></body></html>\n");
    html
}

fn header(about: &About) -> String {
    let unknown = |text: &str| if text.is_empty() { "unknown".to_string() } else { escape(text) };
    let mut html = String::from("<header><h1>Runnel lab report</h1>\n<dl class=\"about\">");
    let binary = if about.binary_bytes == 0 { String::new() } else { text::bytes(about.binary_bytes as f64) };
    let machine = about.machine();
    let facts =
        [("Date", &about.date), ("Commit", &about.commit), ("Host", &machine), ("Kernel of the guest", &about.kernel)];
    let rivals = about.rivals.join("; ");
    for (name, value) in facts.into_iter().chain([("Binary", &binary), ("Other systems", &rivals)]) {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", unknown(value));
    }
    html.push_str(
        "</dl>\n<p>Times are those of a guest whose clock counts instructions (1 instruction is 1 ns), so they do \
        not depend on the load of the host. Numbers are medians over the runs of a row. One virtual CPU is shared by \
        device, server and network: at 1 Gbit/s the CPU is often the limit.</p>\n",
    );
    html.push_str(&about.notes_html());
    html.push_str("</header>\n");
    html
}

fn summary(targets: &[Target]) -> String {
    let count = |verdict| targets.iter().filter(|target| target.verdict() == verdict).count();
    let (met, missed) = (count(Verdict::Met), count(Verdict::Missed));
    let mut html = format!(
        "<section id=\"summary\"><h2>Summary</h2><p class=\"score\"><b class=\"good\">{met} met</b> \
         <b class=\"bad\">{missed} missed</b> <b class=\"none\">{} not measured</b></p>\n<ul class=\"cards\">",
        count(Verdict::NotMeasured)
    );
    for target in targets {
        let (class, word) = verdict_words(target.verdict());
        let worst = target.worst().map_or("no case in this run".to_string(), |case| {
            format!("worst {} ({})", target.show(case.value), case.label)
        });
        let _ = writeln!(
            html,
            "<li class=\"{class}\"><b>{}</b><span class=\"verdict\">{word}</span><span>{}</span><span>{}</span></li>",
            escape(target.name),
            escape(&target.demand()),
            escape(&worst)
        );
    }
    html.push_str("</ul></section>\n");
    html
}

/// Class and word of a verdict.
pub fn verdict_words(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Met => ("good", "met"),
        Verdict::Missed => ("bad", "missed"),
        Verdict::NotMeasured => ("none", "not measured"),
    }
}

fn section(figure: &Figure) -> String {
    let mut html = format!("<section id=\"{}\"><h2>{}</h2>\n<dl class=\"facts\">", figure.id, escape(&figure.title));
    let facts =
        [("Paper", escape(&figure.paper)), ("Measured here", ours(figure)), ("Physical limit", escape(&figure.limit))];
    for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        // Many sentences get a line of their own.
        let class = if value.matches("<li>").count() > 2 { " class=\"wide\"" } else { "" };
        let _ = write!(html, "<div{class}><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html.push_str("</dl>\n");
    if figure.is_measured() {
        html.push_str(&figure.body);
    } else {
        html.push_str("<p class=\"absent\">Not measured in this run.</p>\n");
    }
    for remark in &figure.remarks {
        let _ = writeln!(html, "<p class=\"remark\">{}</p>", escape(remark));
    }
    html.push_str("<p class=\"top\"><a href=\"#summary\">Back to the summary</a></p></section>\n");
    html
}

/// What was measured, as a text or as a list.
fn ours(figure: &Figure) -> String {
    match &figure.ours[..] {
        [] => String::new(),
        [one] => escape(one),
        more => {
            let items: String = more.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
            format!("<ul>{items}</ul>")
        }
    }
}
