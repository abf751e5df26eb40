//! From values to coordinates, and where an axis has its ticks.

use crate::text;

/// What an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, shown as the size of the number demands.
    Seconds,
    /// A share, shown in percent.
    Share,
    /// Percent already.
    Percent,
    /// A count.
    Count,
    /// Times another value.
    Ratio,
    /// Energy.
    Joules,
    /// A size.
    Bytes,
}

impl Unit {
    /// A value for a tick: short.
    pub fn tick(self, value: f64) -> String {
        match self {
            Unit::Seconds => short_seconds(value),
            Unit::Share => format!("{} %", text::plain(value * 100.0)),
            Unit::Percent => format!("{} %", text::plain(value)),
            Unit::Count => text::count(value),
            Unit::Ratio => format!("{}x", text::plain(value)),
            Unit::Joules => format!("{} J", text::plain(value)),
            Unit::Bytes if value >= 1e6 => format!("{} MB", text::plain(value / 1e6)),
            Unit::Bytes => text::bytes(value),
        }
    }

    /// A value for a table: precise.
    pub fn cell(self, value: f64) -> String {
        match self {
            Unit::Seconds => text::seconds(value),
            Unit::Share => text::percent(value),
            Unit::Percent => format!("{} %", text::plain(value)),
            Unit::Count => text::count(value),
            Unit::Ratio => text::ratio(value),
            Unit::Joules => format!("{value:.3} J"),
            Unit::Bytes => text::bytes(value),
        }
    }
}

fn short_seconds(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        size if size >= 0.9995 => format!("{} s", text::plain(value)),
        size if size >= 0.9995e-3 => format!("{} ms", text::plain(value * 1e3)),
        _ => format!("{} µs", text::plain(value * 1e6)),
    }
}

/// Values between `low` and `high` laid on coordinates between `from` and `to`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// From zero, or from the smallest value if that is negative, to a round number above the
    /// largest.
    pub fn linear(values: impl Iterator<Item = f64>, [from, to]: [f64; 2]) -> Scale {
        let (low, high) = values
            .filter(|value| value.is_finite())
            .fold((0.0f64, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let high = if high > low { high } else { low + 1.0 };
        let step = step(high - low);
        let (low, high) = ((low / step).floor() * step, (high / step - 1e-9).ceil() * step);
        Scale { low, high, logarithmic: false, from, to }
    }

    /// Between the numbers 1, 2 or 5 times a power of ten around the positive values.
    pub fn logarithmic(values: impl Iterator<Item = f64>, [from, to]: [f64; 2]) -> Scale {
        let positive = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) =
            positive.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        let (mut low, mut high) = (round_below(low), round_above(high));
        if high / low < 1.5 {
            (low, high) = (round_below(low * 0.8), round_above(high * 1.25));
        }
        Scale { low, high, logarithmic: true, from, to }
    }

    /// Where a value is; values outside are put at the edge.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values along the axis, both ends among them.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            let step = step(self.high - self.low);
            let count = ((self.high - self.low) / step).round() as i64;
            return (0..=count).map(|index| self.low + index as f64 * step).collect();
        }
        let decades = (self.high / self.low).log10();
        let digits: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let all = (first..=last).flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
        all.filter(|tick| *tick >= self.low * 0.999 && *tick <= self.high * 1.001).collect()
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `span` into four to ten parts.
fn step(span: f64) -> f64 {
    let rough = span / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let digit = rough / power;
    let digit = if digit <= 1.0 {
        1.0
    } else if digit <= 2.0 {
        2.0
    } else if digit <= 5.0 {
        5.0
    } else {
        10.0
    };
    digit * power
}

fn round_below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = value / power * 1.0001;
    power * [5.0, 2.0, 1.0].into_iter().find(|round| *round <= digit).unwrap_or(1.0)
}

fn round_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = value / power * 0.9999;
    power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|round| *round >= digit).unwrap_or(10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        let scale = Scale::linear([0.3, 0.87].into_iter(), [0.0, 100.0]);
        assert_eq!(scale.ticks().len(), 6, "{scale:?}");
        assert!((scale.at(1.0) - 100.0).abs() < 1e-9 && scale.at(0.5) == 50.0 && scale.at(9.0) == 100.0);
        let negative = Scale::linear([-0.12, 0.8].into_iter(), [0.0, 100.0]);
        assert!(negative.ticks()[0] < -0.12 && negative.at(-0.2) == 0.0);
        let log = Scale::logarithmic([0.001, 5.0, 0.0].into_iter(), [0.0, 100.0]);
        let ticks: Vec<String> = log.ticks().into_iter().map(|tick| format!("{tick:.3}")).collect();
        assert_eq!(ticks, ["0.001", "0.010", "0.100", "1.000"]);
        assert!(log.at(5.0) == 100.0 && log.at(0.0) == 0.0);
    }

    #[test]
    fn poor_values_make_no_poor_axes() {
        for values in [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY], vec![7.0, 7.0], vec![1.0]] {
            for scale in [Scale::linear, |values, ends| Scale::logarithmic(values, ends)] {
                let scale = scale(values.clone().into_iter(), [0.0, 100.0]);
                assert!(scale.ticks().len() >= 2, "{values:?}: {scale:?}");
                assert!(scale.ticks().iter().all(|tick| scale.at(*tick).is_finite()), "{values:?}: {scale:?}");
            }
        }
    }

    #[test]
    fn ticks_are_short() {
        let seconds = [0.0, 0.25, 2.0, 0.00005].map(|value| Unit::Seconds.tick(value));
        assert_eq!(seconds, ["0", "250 ms", "2 s", "50 µs"]);
        assert_eq!(
            (Unit::Share.tick(0.30000000000000004), Unit::Percent.tick(0.001)),
            ("30 %".into(), "0.001 %".into())
        );
    }
}
