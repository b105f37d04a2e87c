//! Forces NCCL's algorithm and protocol through its environment.
//!
//! NCCL reads `NCCL_ALGO` and `NCCL_PROTO` whenever it creates a communicator. C's environment must not change while
//! another thread may read it: `setenv` reallocates the array that `getenv` searches. The variables are therefore added
//! while the process has a single thread ([`reserve`]), by `putenv`, which makes the caller's text part of the
//! environment. Afterwards the array does not change: a variable is set by storing bytes in its own text, which always
//! ends with a zero byte inside its buffer.
#![expect(unsafe_code, reason = "makes texts part of the environment")]

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Settings for every process that uses NCCL or NVSHMEM on a shared host. They disable NVLink multicast, because its
/// incorrect use can make a host's GPUs unusable.
pub const SHARED_HOST: [(&str, &str); 2] = [("NCCL_NVLS_ENABLE", "0"), ("NVSHMEM_DISABLE_NVLS", "1")];

/// Choices forced on NCCL; `None` leaves the choice to NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForcedChoice {
    /// Algorithm for `NCCL_ALGO`, such as `Ring` or `Tree`.
    pub algorithm: Option<String>,
    /// Protocol for `NCCL_PROTO`: `LL`, `LL128` or `Simple`.
    pub protocol: Option<String>,
    /// Number of thread blocks (channels): `minCTAs` and `maxCTAs` of the communicator's configuration.
    pub channels: Option<u32>,
}

/// Reason why a choice cannot be forced through the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The variables were not reserved at the start of the process.
    #[error("NCCL's environment was not reserved when the process had one thread")]
    NotReserved,
    /// The process already has other threads, or their number is unknown.
    #[error("NCCL's environment can only be reserved while the process has one thread")]
    Threads,
    /// A value is longer than the buffer of its variable.
    #[error("{name}={value} is longer than {max} bytes")]
    TooLong {
        /// Name of the environment variable.
        name: &'static str,
        /// Value that does not fit.
        value: String,
        /// Length in bytes of the longest value that fits.
        max: usize,
    },
}

/// Names of the environment variables that are set for NCCL and NVSHMEM.
const NAMES: [&str; 4] = ["NCCL_ALGO", "NCCL_PROTO", SHARED_HOST[0].0, SHARED_HOST[1].0];

/// Minimum buffer length of a value in bytes. The buffer is longer if the environment has a longer value at the start.
const MIN_VALUE_BYTES: usize = 64;

/// Buffers of [`NAMES`], and the lock that a thread holds while it sets them.
static RESERVED: OnceLock<(Vec<Slot>, Mutex<()>)> = OnceLock::new();

/// Reserves buffers in the environment for the variables that are set for NCCL. Must be called at the start of the
/// process; repeated calls have no effect.
///
/// # Errors
/// [`EnvironmentError::Threads`] if the process has other threads.
pub fn reserve() -> Result<(), EnvironmentError> {
    unsafe extern "C" {
        fn putenv(text: *mut c_char) -> c_int;
    }
    if RESERVED.get().is_some() {
        return Ok(());
    }
    if !is_alone() {
        return Err(EnvironmentError::Threads);
    }
    let slots: Vec<Slot> = NAMES.into_iter().map(|name| Slot::new(name, std::env::var(name).ok().as_deref())).collect();
    for slot in &slots {
        // `putenv` reads the name from the text, so the text of an unset variable is complete during the call and
        // hidden afterwards.
        let value = slot.value();
        slot.set(Some(value.as_deref().unwrap_or_default()));
        // SAFETY: this is the only thread, so no other thread reads or changes the environment. The text lives as long
        // as the process, always ends with a zero inside its buffer, and is only changed by atomic stores.
        let _ = unsafe { putenv(slot.text.as_ptr().cast_mut().cast()) };
        slot.set(value.as_deref());
    }
    let _ = RESERVED.set((slots, Mutex::new(())));
    Ok(())
}

/// Returns true if this thread is known to be the only one of the process.
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

impl ForcedChoice {
    /// Names and values of the variables, including [`SHARED_HOST`]. `None` leaves a variable unchanged.
    fn variables(&self) -> [(&'static str, Option<&str>); 4] {
        let [algorithm, protocol, nccl, nvshmem] = NAMES;
        let [(_, no_nccl), (_, no_nvshmem)] = SHARED_HOST;
        [
            (algorithm, self.algorithm.as_deref()),
            (protocol, self.protocol.as_deref()),
            (nccl, Some(no_nccl)),
            (nvshmem, Some(no_nvshmem)),
        ]
    }

    /// Runs `work`, which creates communicators, with the variables set, and restores their previous values. Variables
    /// that are not forced are unchanged.
    ///
    /// # Errors
    /// The variables are not reserved, or a value is too long; `work` is not run then.
    pub fn with_environment<T>(&self, work: impl FnOnce() -> T) -> Result<T, EnvironmentError> {
        let (slots, turn) = RESERVED.get().ok_or(EnvironmentError::NotReserved)?;
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        set_around(slots, &self.variables(), work)
    }
}

fn set_around<T>(
    slots: &[Slot],
    variables: &[(&'static str, Option<&str>)],
    work: impl FnOnce() -> T,
) -> Result<T, EnvironmentError> {
    let slot_of = |name: &str| slots.iter().find(|slot| slot.name == name).ok_or(EnvironmentError::NotReserved);
    let mut set = Vec::new();
    for &(name, value) in variables {
        if let Some(value) = value {
            let slot = slot_of(name)?;
            if value.len() > slot.room() {
                return Err(EnvironmentError::TooLong { name, value: value.to_owned(), max: slot.room() });
            }
            set.push((slot, value));
        }
    }
    /// Guard that restores the previous values when dropped, even if `work` panics.
    struct Restore<'a>(Vec<(&'a Slot, Option<String>)>);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            self.0.iter().for_each(|(slot, value)| slot.set(value.as_deref()));
        }
    }
    let back = Restore(set.iter().map(|(slot, _)| (*slot, slot.value())).collect());
    set.iter().for_each(|(slot, value)| slot.set(Some(value)));
    let result = work();
    drop(back);
    Ok(result)
}

/// Text of a variable, `NAME=value`, with space for longer values. If the variable is not set, the text begins with a
/// zero byte, and an empty text defines no variable.
struct Slot {
    name: &'static str,
    text: &'static [AtomicU8],
}

impl Slot {
    fn new(name: &'static str, value: Option<&str>) -> Self {
        let room = value.map_or(0, str::len).max(MIN_VALUE_BYTES);
        let text: Vec<AtomicU8> = (0..name.len() + 1 + room + 1).map(|_| AtomicU8::new(0)).collect();
        let slot = Self { name, text: text.leak() };
        slot.set(value);
        slot
    }

    /// Length in bytes of the longest value that fits the buffer.
    fn room(&self) -> usize {
        self.text.len().saturating_sub(self.name.len() + 2)
    }

    /// Value of the variable; `None` if the variable is not set.
    fn value(&self) -> Option<String> {
        let bytes: Vec<u8> =
            self.text.iter().map(|byte| byte.load(Ordering::Acquire)).take_while(|&byte| byte != 0).collect();
        let value = bytes.strip_prefix(self.name.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    }

    /// Sets the variable, or hides it for `None`. The last byte of the text remains zero.
    fn set(&self, value: Option<&str>) {
        // The variable is hidden while it changes.
        if let Some(first) = self.text.first() {
            first.store(0, Ordering::Release);
        }
        let Some(value) = value else { return };
        let value = value.as_bytes().get(..value.len().min(self.room())).unwrap_or_default();
        let bytes = self.name.bytes().chain([b'=']).chain(value.iter().copied()).chain([0]);
        for (to, byte) in self.text.iter().zip(bytes).skip(1) {
            to.store(byte, Ordering::Release);
        }
        if let (Some(to), Some(byte)) = (self.text.first(), self.name.bytes().next()) {
            to.store(byte, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_restored_afterwards() {
        let slots = [Slot::new("A_NAME", None), Slot::new("OTHER", Some(&"x".repeat(100)))];
        let values = || slots.iter().map(Slot::value).collect::<Vec<_>>();
        let before = values();
        let variables = [("A_NAME", Some("Ring")), ("OTHER", Some("LL"))];
        let during = set_around(&slots, &variables, values).unwrap();
        assert_eq!(during, [Some("Ring".to_owned()), Some("LL".to_owned())]);
        assert_eq!((values(), before[0].as_deref()), (before.clone(), None));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            set_around(&slots, &variables, || assert!(slots.is_empty(), "the work panics"))
        }));
        assert!(panicked.is_err() && values() == before);
        let long = "x".repeat(65);
        let refused = set_around(&slots, &[("OTHER", Some("LL")), ("A_NAME", Some(&long))], || ());
        assert!(matches!(refused, Err(EnvironmentError::TooLong { name: "A_NAME", .. })) && values() == before);
        assert_eq!(set_around(&slots, &[("NONE", Some("x"))], || ()), Err(EnvironmentError::NotReserved));
    }

    #[test]
    fn texts_end_inside_their_buffer() {
        let slot = Slot::new("A_NAME", None);
        for value in ["", "Ring", &"x".repeat(MIN_VALUE_BYTES), &"x".repeat(10 * MIN_VALUE_BYTES)] {
            slot.set(Some(value));
            assert_eq!(slot.text.last().unwrap().load(Ordering::Relaxed), 0);
            assert_eq!(slot.value().unwrap(), value[..value.len().min(MIN_VALUE_BYTES)]);
        }
    }

    #[test]
    fn processes_with_several_threads_cannot_reserve() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || receiver.recv());
        assert_eq!(reserve(), Err(EnvironmentError::Threads));
        assert_eq!(ForcedChoice::default().with_environment(|| ()), Err(EnvironmentError::NotReserved));
        drop(sender);
        let _ = thread.join();
    }
}
