//! A coverage as text for people: scenarios, totals, then functions in the order in which they ran.

use std::fmt::{self, Write};

use crate::writer::phases;
use crate::{Coverage, Function, ORDER_UNKNOWN};

/// Writes `coverage` as text, one line a function: order, phases (b boot, s service), executed
/// bytes, bytes, blocks, name.
///
/// # Errors
/// `out` refuses the text.
pub fn dump(coverage: &Coverage, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "coverage of Linux {}", coverage.release)?;
    for scenario in &coverage.scenarios {
        let (name, how) = (&scenario.name, scenario.how);
        writeln!(out, "scenario {name} ({how}): functions {} blocks {}", scenario.functions, scenario.blocks)?;
    }
    total(coverage, "in all", |_| true, Function::executed, out)?;
    total(coverage, "in service", |function| function.service, Function::executed_in_service, out)?;
    total(coverage, "only before", |function| !function.service, Function::executed, out)?;
    writeln!(out, " order ran  executed     bytes blocks function")?;
    let mut functions: Vec<&Function> = coverage.functions.iter().collect();
    functions.sort_by_key(|function| (function.order, &function.name));
    for function in functions {
        let order = if function.order == ORDER_UNKNOWN { "-".to_string() } else { function.order.to_string() };
        writeln!(
            out,
            "{order:>6} {:<3} {:>9} {:>9} {:>6} {}",
            phases(function.boot, function.service),
            function.executed(),
            function.bytes,
            function.blocks.len(),
            function.name
        )?;
    }
    Ok(())
}

fn total(
    coverage: &Coverage,
    what: &str,
    counts: impl Fn(&Function) -> bool,
    executed: impl Fn(&Function) -> u64,
    out: &mut dyn Write,
) -> fmt::Result {
    let functions = || coverage.functions.iter().filter(|function| counts(function));
    let bytes: u64 = functions().map(|function| function.bytes).sum();
    let executed: u64 = functions().map(executed).sum();
    writeln!(out, "{what}: functions {} with bytes {bytes}, of which executed {executed}", functions().count())
}
