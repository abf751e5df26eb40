//! Median and spread of a few runs, quantiles of many values.

/// Summary of the values of one metric over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Middle value; the mean of the two middle ones if their number is even.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// How many runs.
    pub count: usize,
}

impl Summary {
    /// Summary of `values`; `None` if there are none. Values must be numbers (no NaN), in any
    /// order.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        let median = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
        Some(Summary { median, min, max, count })
    }
}

/// The value below which a share of `sorted` lies.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((share * last as f64).round() as usize).copied()
}

/// At most `most` of the values, evenly over their indexes, first and last among them.
pub fn thinned<T: Copy>(values: &[T], most: usize) -> Vec<T> {
    if values.len() <= most || most < 2 {
        return values.to_vec();
    }
    (0..most).map(|index| values[index * (values.len() - 1) / (most - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middle_values() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]);
        assert_eq!(odd, Some(Summary { median: 2.0, min: 1.0, max: 3.0, count: 3 }));
        let even = Summary::of(&[4.0, 1.0, 2.0, 10.0]);
        assert_eq!(even, Some(Summary { median: 3.0, min: 1.0, max: 10.0, count: 4 }));
        assert_eq!(Summary::of(&[7.0]).map(|one| one.median), Some(7.0));
        assert_eq!(Summary::of(&[f64::MAX, f64::MAX]).map(|two| two.median), Some(f64::MAX));
        assert_eq!(Summary::of(&[]), None);
    }
}
