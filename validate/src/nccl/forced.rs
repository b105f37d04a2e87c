//! What NCCL is made to do by its environment.
#![expect(unsafe_code, reason = "sets variables of the environment")]

use std::ffi::OsString;

/// Settings for every process that uses NCCL or NVSHMEM on a host shared with others: no NVLink multicast, whose misuse
/// can put a host's GPUs out of service.
pub const SHARED_HOST: [(&str, &str); 2] = [("NCCL_NVLS_ENABLE", "0"), ("NVSHMEM_DISABLE_NVLS", "1")];

/// A choice that NCCL is forced to, by the environment of the process that uses it. Absent: NCCL chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forced {
    /// `NCCL_ALGO`: `Ring`, `Tree`, …
    pub algorithm: Option<String>,
    /// `NCCL_PROTO`: `LL`, `LL128`, `Simple`.
    pub protocol: Option<String>,
    /// Both `NCCL_MIN_CTAS` and `NCCL_MAX_CTAS`: thread blocks, which are channels.
    pub channels: Option<u32>,
    /// Anything else, as `NAME` and value.
    pub other: Vec<(String, String)>,
}

impl Forced {
    /// The environment that says so, [`SHARED_HOST`] included.
    pub fn environment(&self) -> Vec<(String, String)> {
        let mut variables: Vec<(String, String)> =
            SHARED_HOST.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut set = |name: &str, value: Option<String>| {
            variables.extend(value.map(|value| (name.to_owned(), value)));
        };
        set("NCCL_ALGO", self.algorithm.clone());
        set("NCCL_PROTO", self.protocol.clone());
        for name in ["NCCL_MIN_CTAS", "NCCL_MAX_CTAS"] {
            set(name, self.channels.map(|channels| channels.to_string()));
        }
        variables.extend(self.other.iter().cloned());
        variables
    }

    /// Does `work`, making communicators, while this process's environment says so; then it says what it said before.
    ///
    /// # Safety
    /// No other thread may look at the environment by other ways than Rust's, or change it, meanwhile: `work` itself waits for
    /// the threads that it starts, and communicators that were made before look at it when they are made only.
    pub unsafe fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        let before: Vec<(String, Option<OsString>)> = self
            .environment()
            .into_iter()
            .map(|(name, value)| {
                let old = std::env::var_os(&name);
                // SAFETY: the caller answers for other threads.
                unsafe { std::env::set_var(&name, value) };
                (name, old)
            })
            .collect();
        let made = work();
        for (name, old) in before {
            // SAFETY: as above.
            unsafe {
                match old {
                    Some(value) => std::env::set_var(name, value),
                    None => std::env::remove_var(name),
                }
            }
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_as_before_afterwards() {
        let name = "FABRICAST_FORCED_TEST";
        let forced = Forced { other: vec![(name.into(), "1".into())], ..Forced::default() };
        let shared = SHARED_HOST.map(|(name, _)| std::env::var_os(name));
        // SAFETY: no other test here changes or reads these variables.
        let seen = unsafe { forced.around(|| std::env::var(name)) };
        assert_eq!(seen.as_deref(), Ok("1"));
        assert!(std::env::var_os(name).is_none());
        assert_eq!(SHARED_HOST.map(|(name, _)| std::env::var_os(name)), shared);
    }

    #[test]
    fn what_is_not_forced_is_left_to_nccl() {
        let names = |forced: &Forced| forced.environment().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&Forced::default()), ["NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS"]);
        let forced = Forced { protocol: Some("LL".into()), channels: Some(4), ..Forced::default() };
        assert_eq!(names(&forced)[2..], ["NCCL_PROTO", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"]);
    }
}
