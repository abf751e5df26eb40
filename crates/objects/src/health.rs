//! Whether the service answers.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// How often a service that is away is asked whether it is back. All other requests fail meanwhile
/// without being sent: each would wait for its time limit.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Whether the service answered last.
#[derive(Default)]
pub(crate) struct Health {
    away: Mutex<Option<Away>>,
}

struct Away {
    reason: String,
    /// When it was asked last.
    tried: Instant,
}

impl Health {
    /// Lets a request through, unless the service is away and was asked a moment ago.
    pub fn admit(&self) -> Result<(), Failure> {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *away {
            Some(away) if away.tried.elapsed() < TRY_EVERY => Err(Failure::Away(away.reason.clone())),
            Some(away) => {
                away.tried = Instant::now();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A request ended so.
    pub fn note<T>(&self, result: &Result<T, Failure>) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        *away = match result {
            Err(Failure::Away(reason)) => Some(Away { reason: reason.clone(), tried: Instant::now() }),
            // Whatever it answered, it answered.
            _ => None,
        };
    }

    /// Why it is away, if it is.
    pub fn away(&self) -> Option<Failure> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.as_ref().map(|away| Failure::Away(away.reason.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_is_away_is_asked_by_one_and_is_back_when_it_answers() {
        let health = Health::default();
        health.admit().unwrap();
        health.note::<()>(&Err(Failure::Away("refused".into())));
        assert!(matches!(health.admit(), Err(Failure::Away(reason)) if reason == "refused"));
        assert!(matches!(health.away(), Some(Failure::Away(reason)) if reason == "refused"));
        health.note::<()>(&Err(Failure::NotFound));
        health.admit().unwrap();
        assert!(health.away().is_none());
    }
}
