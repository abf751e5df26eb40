//! Learns a plan from traces and keeps it in the store.
//!
//! The traces of the last few learning runs stay beside the plan, so that each further run makes a
//! better plan: pages that only one run touched are not prefetched.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use profile::plan::{self, AnalyseConfig, Analysis, Files, Identity, PlanFile, Run};
use trace::Trace;

use crate::files::{OnDisk, absolute, identity, is_same, open};
use crate::store::{TRACES_MAX, traces_of};
use crate::{LaunchError, PlanStore, Program, small_file};

/// Longest trace that is read, in bytes: a million touches of a day's recording.
pub const TRACE_BYTES_MAX: u64 = 64 << 20;

/// The files of this machine, for the analyser.
#[derive(Clone, Copy, Debug)]
pub struct LocalFiles;

impl LocalFiles {
    /// The function at `offset` of a file of a plan, as `name+0x10`; `None` if the file is not the
    /// one the plan means, or has no such symbol.
    pub fn symbol(&self, file: &PlanFile, offset: u64) -> Option<String> {
        let opened = open(&absolute(&file.path)).ok()?;
        if !is_same(&opened, file.identity.as_ref()?).ok()? {
            return None;
        }
        let symbol = elf::symbol_at(&OnDisk(&opened), offset).ok()??;
        let name = symbol.name.escape_ascii();
        Some(if symbol.offset == 0 { name.to_string() } else { format!("{name}+{:#x}", symbol.offset) })
    }
}

impl Files for LocalFiles {
    fn identity(&self, path: &[u8]) -> Option<Identity> {
        identity(&absolute(path))
    }

    fn byte(&self, path: &[u8], offset: u64) -> Option<u8> {
        let mut byte = [0u8];
        let read = open(&absolute(path)).ok()?.read_at(&mut byte, offset).ok()?;
        (read == 1).then_some(byte[0])
    }
}

impl PlanStore {
    /// Makes the plan of `program` anew from traces of its runs, oldest first, and keeps plan and
    /// traces.
    ///
    /// # Errors
    /// Traces that are no learning runs of the program; a folder that cannot be written to.
    pub fn learn(
        &self,
        program: &Program,
        traces: &[(Vec<u8>, Trace)],
        config: &AnalyseConfig,
    ) -> Result<(PathBuf, Analysis), LaunchError> {
        let traces = &traces[traces.len().saturating_sub(TRACES_MAX)..];
        let runs: Result<Vec<Run>, _> = traces.iter().map(|(_, trace)| Run::from_trace(trace)).collect();
        let analysed = runs.and_then(|runs| plan::analyse(&runs, &LocalFiles, config));
        let mut analysis = analysed.map_err(LaunchError::Run)?;
        // The trace of a script names the interpreter.
        analysis.plan.program = program.real.as_os_str().as_bytes().to_vec();
        let path = self.save(program, &analysis.plan)?;
        for (number, slot) in self.trace_paths(program).iter().enumerate() {
            match traces.get(number) {
                Some((bytes, _)) => small_file::replace(slot, bytes)?,
                None => drop(std::fs::remove_file(slot)),
            }
        }
        Ok((path, analysis))
    }

    /// The traces that are kept of a program, oldest first; what cannot be read any more is left
    /// out.
    pub fn traces(&self, program: &Program) -> Vec<(Vec<u8>, Trace)> {
        let read = |path: &PathBuf| {
            let bytes = small_file::read(path, TRACE_BYTES_MAX).ok()?;
            let trace = trace::read(&bytes, &trace::Limits::default()).ok()?;
            Some((bytes, trace))
        };
        self.trace_paths(program).iter().filter_map(read).collect()
    }

    fn trace_paths(&self, program: &Program) -> Vec<PathBuf> {
        traces_of(&self.plan_path(program))
    }
}
