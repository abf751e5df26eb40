//! How fast files are made: 1,000 files of 4 to 64 KiB, one transaction each, 50 in a transaction,
//! and from 8 threads. `cargo run --release --example throughput -p runnel-volume -- FOLDER`

use std::path::Path;
use std::time::Instant;

use units::{Rng, SplitMix64};
use volume::{Operation, Options, Transaction, Volume, VolumePath};

const FILES: usize = 1000;

fn file(rng: &mut SplitMix64, name: &str) -> Vec<Operation> {
    let path = VolumePath::new(name.as_bytes()).expect("a plain name");
    let bytes = (0..4096 + rng.below(60 << 10)).map(|_| rng.next_u64() as u8).collect();
    vec![
        Operation::Create { path: path.clone(), mode: 0o644, exclusive: true, owner: None },
        Operation::Write { path, base: None, offset: 0, bytes },
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("FOLDER is missing")?;
    let mut rng = SplitMix64(1);
    for (case, each, threads) in [("one each", 1, 1), ("50 each", 50, 1), ("one each, 8 threads", 1, 8)] {
        let at = Path::new(&folder).join(case.replace(' ', "-"));
        std::fs::create_dir(&at)?;
        let volume = Volume::open(&at, None, Options::default())?;
        let files: Vec<_> = (0..FILES).map(|index| file(&mut rng, &format!("f{index}"))).collect();
        let transactions: Vec<Transaction> = files
            .chunks(each)
            .map(|files| Transaction { operations: files.concat(), ..Transaction::default() })
            .collect();
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in transactions.chunks(transactions.len().div_ceil(threads)) {
                let volume = &volume;
                scope.spawn(move || part.iter().all(|transaction| volume.commit(transaction.clone()).is_ok()));
            }
        });
        let committed = start.elapsed();
        volume.checkpoint()?;
        let seconds = committed.as_secs_f64();
        println!(
            "{case}: {seconds:.2} s, {:.0} files/s; with a checkpoint {:.2} s",
            FILES as f64 / seconds,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
