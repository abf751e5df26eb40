//! A bit of a connection that is damaged on its way.

/// Damages a bit if its time has come; whether it did.
pub fn damage(flip_in: &mut u64, bytes: &mut [u8], random: u64) -> bool {
    if *flip_in == u64::MAX {
        return false;
    }
    let Some(byte) = bytes.get_mut(*flip_in as usize) else {
        *flip_in -= bytes.len() as u64;
        return false;
    };
    *byte ^= 1 << (random % 8);
    *flip_in = u64::MAX;
    true
}
