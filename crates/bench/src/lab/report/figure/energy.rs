//! Figure 12: energy of a start on the device, through a stated model.
//!
//! `energy = CPU_ACTIVE_WATTS x CPU seconds + RADIO_ON_WATTS x seconds the radio is on`. A radio
//! stays on for a while after a packet; 200 ms is what counts, 60 ms is shown beside it. Idle power
//! is left out: it would favour the faster system.

use super::{Figure, heading, network_links, sentences};
use crate::lab::report::html::Table;
use crate::lab::report::limit::Limit;
use crate::lab::report::measured::Measured;
use crate::lab::report::plot::bars::{Bar, Bars, Group};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::plot::{Key, neutral_tone};
use crate::lab::report::text;

/// One busy core above an idle one, watts: what boards with cores like the guest's (Cortex-A53
/// class) draw more under load on one core, to one digit.
const CPU_ACTIVE_WATTS: f64 = 1.0;

/// The radio awake above the radio asleep, watts: WiFi stations draw 0.7 to 1 W receiving or
/// listening.
const RADIO_ON_WATTS: f64 = 0.8;

/// A byte costs nothing beyond the time the radio is on for it.
const JOULES_PER_BYTE: f64 = 0.0;

/// How long the radio stays on after a packet, as counted for `radio_on_200ms`, seconds.
const TAIL_SECONDS: f64 = 0.2;

/// What a start costs, joules.
struct Energy {
    cpu: f64,
    radio: f64,
    /// Its duration with the tail of the radio, seconds.
    duration: f64,
}

impl Energy {
    fn of(measured: &Measured, link: &str, system: &str, program: &str) -> Option<Energy> {
        let value = |name: &str| measured.value("energy", link, system, program, name);
        let radio = value("radio_on_200ms")?;
        let bytes = value("rx_bytes").unwrap_or(0.0) + value("tx_bytes").unwrap_or(0.0);
        Some(Energy {
            cpu: CPU_ACTIVE_WATTS * cpu_seconds(measured, link, system, program)?,
            radio: RADIO_ON_WATTS * radio + JOULES_PER_BYTE * bytes,
            duration: value("cold")? + TAIL_SECONDS,
        })
    }

    fn sum(&self) -> f64 {
        self.cpu + self.radio
    }

    fn watts(&self) -> f64 {
        self.sum() / self.duration
    }
}

/// CPU seconds of the device: as measured, else of the guest without the server, else of the
/// program.
fn cpu_seconds(measured: &Measured, link: &str, system: &str, program: &str) -> Option<f64> {
    let value = |name: &str| measured.value("energy", link, system, program, name);
    let without_server = || Some(value("busy")? - value("server_busy")?);
    value("device_busy").or_else(without_server).or_else(|| Some(value("user")? + value("system")?))
}

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links = network_links(measured, "energy");
    let body: String = links.iter().map(|link| of_link(measured, link)).collect();
    let against_nfs = |what: fn(&Energy) -> f64, link: &str| {
        let share = |program: &str| {
            let nfs = Energy::of(measured, link, "nfs", program).map(|nfs| what(&nfs)).filter(|nfs| *nfs > 0.0)?;
            Some((program.to_string(), what(&Energy::of(measured, link, "runnel:learned", program)?) / nfs - 1.0))
        };
        let shares: Vec<(String, f64)> = measured.programs("energy").into_iter().filter_map(share).collect();
        text::range(&shares, signed_percent)
    };
    let ours = links.iter().map(|link| {
        let energy = against_nfs(Energy::sum, link).map(|range| format!("energy {range}"));
        let power = against_nfs(Energy::watts, link).map(|range| format!("mean power {range}"));
        let both: Vec<String> = energy.into_iter().chain(power).collect();
        if both.is_empty() {
            String::new()
        } else {
            format!("Against NFS, {}: {}.", text::link_short(link), both.join("; "))
        }
    });
    Figure {
        id: "figure-12",
        title: "Figure 12: energy of a start on the device".into(),
        paper: "At worst 6.7 % more power than NFS.".into(),
        ours: sentences(ours),
        limit: format!(
            "Warm CPU time x {CPU_ACTIVE_WATTS} W + (limit of the link + {TAIL_SECONDS} s of tail) x \
             {RADIO_ON_WATTS} W; see the column."
        ),
        body,
        remarks: vec![
            format!(
                "A model, since there is no power meter here: a busy core draws {CPU_ACTIVE_WATTS} W above an idle \
                 one (boards with cores like the guest's), the radio {RADIO_ON_WATTS} W while it is on (WiFi \
                 stations draw 0.7 to 1 W), a byte {JOULES_PER_BYTE} J beyond that. The radio stays on for 200 ms \
                 after a packet; with a tail of 60 ms for comparison."
            ),
            "Power is energy over duration: a start that does the same work in a shorter time has a higher mean \
             power and the same energy. Idle power of the rest of the device is left out. Which of them the paper \
             means is not known to us."
                .into(),
        ],
    }
}

fn signed_percent(share: f64) -> String {
    format!("{}{}", if share > 0.0 { "+" } else { "" }, text::percent(share))
}

fn of_link(measured: &Measured, link: &str) -> String {
    let mut table = Table::new(&[
        "Program",
        "System",
        "CPU",
        "Wake-ups",
        "Packets",
        "Radio on",
        "with 60 ms",
        "Energy",
        "with 60 ms",
        "Mean power",
        "Limit",
        "Energy / NFS",
    ])
    .words(2);
    let mut groups = Vec::new();
    for program in measured.programs("energy") {
        let nfs = Energy::of(measured, link, "nfs", program).map(|nfs| nfs.sum()).filter(|nfs| *nfs > 0.0);
        let mut group = Group { label: program.to_string(), bars: Vec::new() };
        for system in measured.systems("energy", link) {
            let value = |name: &str| measured.value("energy", link, system, program, name);
            let Some(cpu) = cpu_seconds(measured, link, system, program) else { continue };
            let energy = Energy::of(measured, link, system, program);
            let joules = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.3} J"));
            let seconds = |value: Option<f64>| value.map_or("-".to_string(), text::seconds);
            let count = |value: Option<f64>| value.map_or("-".to_string(), text::count);
            let short_tail = value("radio_on_60ms").map(|radio| CPU_ACTIVE_WATTS * cpu + RADIO_ON_WATTS * radio);
            let sum = energy.as_ref().map(Energy::sum);
            table.row([
                program.to_string(),
                text::system(system),
                text::seconds(cpu),
                count(value("wakeups")),
                count(value("packets")),
                seconds(value("radio_on_200ms")),
                seconds(value("radio_on_60ms")),
                joules(sum),
                joules(short_tail),
                energy.as_ref().map_or("-".to_string(), |energy| format!("{:.2} W", energy.watts())),
                joules(floor(measured, link, program)),
                sum.zip(nfs).map_or("-".to_string(), |(sum, nfs)| text::ratio(sum / nfs)),
            ]);
            if let Some(energy) = energy {
                let parts = vec![(energy.cpu, neutral_tone(0)), (energy.radio, neutral_tone(1))];
                let text = format!("{:.3} J", energy.sum());
                group.bars.push(Bar { label: text::system(system), parts, spread: None, mark: None, text });
            }
        }
        groups.push(group);
    }
    if table.is_empty() {
        return String::new();
    }
    let legend = vec![Key::area("CPU", neutral_tone(0)), Key::area("radio", neutral_tone(1))];
    let title = format!("Energy of a cold start by the model, {}", text::link(link));
    let bars = Bars { title, axis: "energy above idle".into(), unit: Unit::Joules, groups, legend };
    heading(&text::link(link)) + &table.html() + &bars.html()
}

/// The least energy of a start.
fn floor(measured: &Measured, link: &str, program: &str) -> Option<f64> {
    let limit = Limit::of(measured, link, program)?;
    Some(CPU_ACTIVE_WATTS * limit.warm? + RADIO_ON_WATTS * (limit.link() + TAIL_SECONDS))
}
