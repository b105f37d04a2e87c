//! The algorithm and the protocol that NCCL is made to take, by its environment.
//!
//! NCCL reads `NCCL_ALGO` and `NCCL_PROTO` whenever it makes a communicator, and C's environment must not be changed where another
//! thread may read it: `setenv` moves what `getenv` looks through. So the variables get their place while the process has one
//! thread ([`reserve`]), with `putenv`, which makes a text of the caller's part of the environment: the environment does not move from
//! then on, and a variable is set by storing bytes of its own text, which always ends within its room.
#![expect(unsafe_code, reason = "makes texts part of the environment")]

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Settings for every process that uses NCCL or NVSHMEM on a host shared with others: no NVLink multicast, whose misuse
/// can put a host's GPUs out of service.
pub const SHARED_HOST: [(&str, &str); 2] = [("NCCL_NVLS_ENABLE", "0"), ("NVSHMEM_DISABLE_NVLS", "1")];

/// A choice that NCCL is forced to. Absent: NCCL chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forced {
    /// `NCCL_ALGO`: `Ring`, `Tree`, …
    pub algorithm: Option<String>,
    /// `NCCL_PROTO`: `LL`, `LL128`, `Simple`.
    pub protocol: Option<String>,
    /// Thread blocks, which are channels: `minCTAs` and `maxCTAs` of the communicator's configuration.
    pub channels: Option<u32>,
}

/// Why the environment cannot say what is forced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// Its variables have no place.
    #[error("NCCL's environment was not reserved when the process had one thread")]
    NotReserved,
    /// The process has other threads already, or it is not known how many it has.
    #[error("NCCL's environment can only be reserved while the process has one thread")]
    Threads,
    /// A value is longer than its room.
    #[error("{name}={value} is longer than {most} bytes")]
    TooLong {
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
        /// Room for it.
        most: usize,
    },
}

/// Variables that are set for NCCL.
const NAMES: [&str; 4] = ["NCCL_ALGO", "NCCL_PROTO", SHARED_HOST[0].0, SHARED_HOST[1].0];

/// Room for a value, unless the environment has a longer one at the start.
const ROOM: usize = 64;

/// The places of [`NAMES`], and who sets them at the moment.
static RESERVED: OnceLock<(Vec<Slot>, Mutex<()>)> = OnceLock::new();

/// Gives the variables that are set for NCCL their places in the environment. To be called at the start of the process; twice is once.
///
/// # Errors
/// [`EnvironmentError::Threads`].
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
        // `putenv` finds the name in the text, so a variable that is not set is shown to it as one and hidden afterwards.
        let value = slot.value();
        slot.set(Some(value.as_deref().unwrap_or_default()));
        // SAFETY: no other thread reads or changes the environment, since this one is the only thread. The text lives as long as the
        // process, ends with a zero within its room whatever is stored in it, and is only changed by atomic stores.
        let _ = unsafe { putenv(slot.text.as_ptr().cast_mut().cast()) };
        slot.set(value.as_deref());
    }
    let _ = RESERVED.set((slots, Mutex::new(())));
    Ok(())
}

/// Whether this thread is the only one of the process, as far as the kernel says so.
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

impl Forced {
    /// The variables that say so, [`SHARED_HOST`] included.
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

    /// Does `work`, making communicators, while this process's environment says so; then it says what it said before. Variables that
    /// are not forced stay as they are.
    ///
    /// # Errors
    /// [`EnvironmentError`]; nothing is done then.
    pub fn around<T>(&self, work: impl FnOnce() -> T) -> Result<T, EnvironmentError> {
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
                return Err(EnvironmentError::TooLong { name, value: value.to_owned(), most: slot.room() });
            }
            set.push((slot, value));
        }
    }
    /// Puts values back, also where `work` panics.
    struct Back<'a>(Vec<(&'a Slot, Option<String>)>);
    impl Drop for Back<'_> {
        fn drop(&mut self) {
            self.0.iter().for_each(|(slot, value)| slot.set(value.as_deref()));
        }
    }
    let back = Back(set.iter().map(|(slot, _)| (*slot, slot.value())).collect());
    set.iter().for_each(|(slot, value)| slot.set(Some(value)));
    let made = work();
    drop(back);
    Ok(made)
}

/// The text of a variable, `NAME=value`, with room for other values. It begins with a zero where the variable is not set: an empty text
/// is no variable's.
struct Slot {
    name: &'static str,
    text: &'static [AtomicU8],
}

impl Slot {
    fn new(name: &'static str, value: Option<&str>) -> Self {
        let room = value.map_or(0, str::len).max(ROOM);
        let text: Vec<AtomicU8> = (0..name.len() + 1 + room + 1).map(|_| AtomicU8::new(0)).collect();
        let slot = Self { name, text: text.leak() };
        slot.set(value);
        slot
    }

    /// Bytes of the longest value.
    fn room(&self) -> usize {
        self.text.len().saturating_sub(self.name.len() + 2)
    }

    /// The value; nothing where the variable is not set.
    fn value(&self) -> Option<String> {
        let bytes: Vec<u8> =
            self.text.iter().map(|byte| byte.load(Ordering::Acquire)).take_while(|&byte| byte != 0).collect();
        let value = bytes.strip_prefix(self.name.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    }

    /// Sets the variable, or hides it. The last byte of the text stays a zero.
    fn set(&self, value: Option<&str>) {
        // Hidden while it changes.
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
    fn values_are_as_before_afterwards() {
        let slots = [Slot::new("A_NAME", None), Slot::new("OTHER", Some(&"x".repeat(100)))];
        let seen = || slots.iter().map(Slot::value).collect::<Vec<_>>();
        let before = seen();
        let variables = [("A_NAME", Some("Ring")), ("OTHER", Some("LL"))];
        let during = set_around(&slots, &variables, seen).unwrap();
        assert_eq!(during, [Some("Ring".to_owned()), Some("LL".to_owned())]);
        assert_eq!((seen(), before[0].as_deref()), (before.clone(), None));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            set_around(&slots, &variables, || assert!(slots.is_empty(), "the work panics"))
        }));
        assert!(panicked.is_err() && seen() == before);
        let long = "x".repeat(65);
        let refused = set_around(&slots, &[("OTHER", Some("LL")), ("A_NAME", Some(&long))], || ());
        assert!(matches!(refused, Err(EnvironmentError::TooLong { name: "A_NAME", .. })) && seen() == before);
        assert_eq!(set_around(&slots, &[("NONE", Some("x"))], || ()), Err(EnvironmentError::NotReserved));
    }

    #[test]
    fn texts_end_within_their_room_whatever_is_stored() {
        let slot = Slot::new("A_NAME", None);
        for value in ["", "Ring", &"x".repeat(ROOM), &"x".repeat(10 * ROOM)] {
            slot.set(Some(value));
            assert_eq!(slot.text.last().unwrap().load(Ordering::Relaxed), 0);
            assert_eq!(slot.value().unwrap(), value[..value.len().min(ROOM)]);
        }
    }

    #[test]
    fn a_process_with_other_threads_reserves_nothing() {
        let (tell, heard) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || heard.recv());
        assert_eq!(reserve(), Err(EnvironmentError::Threads));
        assert_eq!(Forced::default().around(|| ()), Err(EnvironmentError::NotReserved));
        drop(tell);
        let _ = other.join();
    }
}
