//! Unreachable: removes what no root reaches.

use super::Pass;

pub(super) const PASS: Pass = Pass {
    name: "unreachable",
    is_on: |_| true,
    run: |context, analysis| {
        analysis.walk(context.graph);
        Ok(())
    },
};
