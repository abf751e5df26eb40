//! Models of disks: how long a read takes. They are not recordings of one product. The figures of
//! each are those of its class, and reports state them.

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// How a disk works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Platters that turn and heads that move.
    ///
    /// A read that does not go on where the last one ended costs a seek and the wait until its
    /// first byte comes around: the true phase of the platter, not a mean. Of the requests that
    /// wait, the one with the shortest access is next (native command queuing). While nobody asks,
    /// the disk reads on into its buffer, as disks do.
    Rotating {
        /// Turns in a minute.
        turns_per_minute: u64,
        /// Shortest seek, nanoseconds.
        seek_least: u64,
        /// What a seek over the whole disk takes beyond that, nanoseconds; it grows with the root
        /// of the distance.
        seek_span: u64,
        /// Size of the disk, bytes: what seeks are relative to.
        size: u64,
        /// How far it reads on by itself, bytes.
        read_on: u64,
    },
    /// No moving parts: every request takes the same time before its bytes flow; waits of requests
    /// overlap, their bytes share one channel.
    Flat {
        /// From the start of a request to its first byte, nanoseconds.
        latency: u64,
    },
}

/// A disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Its name in options and rows.
    pub name: &'static str,
    /// What people read.
    pub title: &'static str,
    /// How it works.
    pub kind: Kind,
    /// Bytes in a second, once they flow.
    pub rate: u64,
    /// Requests it works on or chooses from at once.
    pub queue: usize,
}

/// The disks that are measured, the slowest first.
pub const MODELS: [Model; 4] = [
    Model {
        name: "hdd",
        title: "hard disk, 7200 turns a minute, 500 GB: seek 1 + 15 sqrt(distance / 500 GB) ms, 120 MB/s, 32 commands \
                queued, shortest access first",
        kind: Kind::Rotating {
            turns_per_minute: 7200,
            seek_least: 1_000_000,
            seek_span: 15_000_000,
            size: 500_000_000_000,
            // Half a turn: what small disks keep free for it while other commands may come.
            read_on: 512 << 10,
        },
        rate: 120_000_000,
        queue: 32,
    },
    Model {
        name: "sata",
        title: "SATA SSD: 100 µs, 500 MB/s, 4 commands at once",
        kind: Kind::Flat { latency: 100_000 },
        rate: 500_000_000,
        queue: 4,
    },
    Model {
        name: "emmc",
        title: "eMMC: 300 µs, 90 MB/s, one command at a time",
        kind: Kind::Flat { latency: 300_000 },
        rate: 90_000_000,
        queue: 1,
    },
    Model {
        name: "net",
        title: "network disk: 1 ms, 125 MB/s, 32 commands at once",
        kind: Kind::Flat { latency: 1_000_000 },
        rate: 125_000_000,
        queue: 32,
    },
];

/// A disk that costs next to nothing: for preparing and learning, never measured.
pub const INSTANT: Model =
    Model { name: "instant", title: "no delay", kind: Kind::Flat { latency: 0 }, rate: 20_000_000_000, queue: 64 };

impl Model {
    /// The disk called `name`.
    pub fn named(name: &str) -> Option<&'static Model> {
        MODELS.iter().find(|model| model.name == name)
    }

    /// Whether it turns: what the kernel is told.
    pub fn is_rotating(&self) -> bool {
        matches!(self.kind, Kind::Rotating { .. })
    }

    /// How long `bytes` flow, nanoseconds.
    pub fn transfer(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(SECOND) / u128::from(self.rate)) as u64
    }
}

impl Kind {
    /// How long heads take over `distance` bytes; 0 for none, and where there are no heads.
    pub fn seek(&self, distance: u64) -> u64 {
        match *self {
            Kind::Rotating { seek_least, seek_span, size, .. } if distance > 0 => {
                let share = (distance as f64 / size as f64).min(1.0);
                seek_least + (seek_span as f64 * share.sqrt()) as u64
            }
            _ => 0,
        }
    }

    /// From `moment` until the byte at `offset` is below the head, nanoseconds, for a disk of
    /// `rate` bytes a second.
    pub fn turn(&self, moment: u64, offset: u64, rate: u64) -> u64 {
        let Kind::Rotating { turns_per_minute, .. } = *self else { return 0 };
        let period = 60 * SECOND / turns_per_minute;
        let track = (rate * 60 / turns_per_minute).max(1);
        let place = u128::from(offset % track) * u128::from(period) / u128::from(track);
        (place as u64 + period - moment % period) % period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_takes_what_the_formula_says() {
        let kind = MODELS[0].kind;
        assert_eq!(kind.seek(0), 0);
        assert_eq!(kind.seek(5_000_000_000), 1_000_000 + 1_500_000, "a hundredth of the disk: a tenth of the span");
        assert_eq!((kind.seek(500_000_000_000), kind.seek(u64::MAX)), (16_000_000, 16_000_000));
        assert_eq!(MODELS[1].kind.seek(1 << 40), 0);
    }

    #[test]
    fn a_byte_comes_around_once_in_a_turn() {
        let disk = &MODELS[0];
        // A turn of 8.33 ms holds 1 MB at 120 MB/s.
        assert_eq!(disk.kind.turn(0, 0, disk.rate), 0);
        assert_eq!(disk.kind.turn(0, 500_000, disk.rate), 4_166_666);
        assert_eq!(disk.kind.turn(4_166_666, 0, disk.rate), 4_166_667);
        assert_eq!(disk.kind.turn(0, 7_000_000, disk.rate), 0);
        assert_eq!(disk.kind.turn(8_333_333 * 3, 1_000_000, disk.rate), 0);
    }

    #[test]
    fn models_are_found_by_name() {
        assert_eq!(Model::named("emmc").map(|model| model.transfer(90_000_000)), Some(SECOND));
        assert!(Model::named("floppy").is_none() && Model::named("hdd").is_some_and(Model::is_rotating));
    }
}
