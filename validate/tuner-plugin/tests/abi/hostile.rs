//! Tests of callers that differ from NCCL: null pointers, invalid numbers, cost tables of other shapes.

use std::ffi::c_int;
use std::ptr::null_mut;

use proptest::prelude::*;

use crate::library::{Call, Communicator, PLUGIN, VERSIONS, Version, log, with_file};

const TABLE: &str =
    "allreduce,0,18446744073709551615,nvls,simple,16,-1,-1\nallreduce,0,18446744073709551615,ring,ll,4,-1,-1\n";
const CALL: Call = Call { function: 4, bytes: 1 << 20, operations: 1, registered: 0 };

fn communicator(version: Version) -> Communicator {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    std::fs::write(&path, TABLE).unwrap();
    Communicator::new(version, Some(&path), 8, 1)
}

#[test]
fn null_pointers_are_accepted() {
    let ((), _) = with_file("FABRICAST_TUNER_FILE", None, || {
        // SAFETY: null pointers are under test.
        unsafe {
            assert_eq!((PLUGIN.four.init)(8, 1, None, null_mut()), 0);
            assert_eq!((PLUGIN.five.init)(null_mut(), 0, 8, 1, Some(log()), null_mut(), null_mut()), 0);
            let mut context = null_mut();
            assert_eq!(
                (PLUGIN.six.five.init)(&raw mut context, 0, usize::MAX, usize::MAX, None, null_mut(), null_mut()),
                0
            );
            assert!(!context.is_null());
            assert_eq!((PLUGIN.six.five.finalize)(context), 0);
            assert_eq!((PLUGIN.four.destroy)(null_mut()), 0);
            let (mut costs, mut channels) = ([5.0_f32; 21], 9);
            let ask = PLUGIN.five.ask;
            assert_eq!(ask(null_mut(), 4, 8, 1, costs.as_mut_ptr().cast(), 7, 3, 0, &raw mut channels), 0);
            assert_eq!((costs, channels), ([5.0; 21], 9));
        }
    });
}

/// After `finalize`, a second `finalize` and later calls find no context, even if another communicator was created
/// since.
#[test]
fn repeated_finalize_is_harmless() {
    for version in VERSIONS {
        let ended = communicator(version);
        let (end, context) = (ended.end(), ended.context);
        // SAFETY: a repeated finalize is under test.
        assert_eq!(unsafe { end(context) }, 0);
        let others: Vec<Communicator> = (0..8).map(|_| communicator(version)).collect();
        // SAFETY: see above.
        assert_eq!(unsafe { (end(context), end(context)) }, (0, 0));
        let answer = ended.ask(CALL, &[5.0; 21], 7, 3);
        assert_eq!((answer.costs, answer.channels), (vec![5.0; 21], -7));
        for other in &others {
            let answer = other.ask(CALL, &[5.0; 21], 7, 3);
            assert_eq!((answer.costs[4 * 3 + 2], answer.channels), (0.0, 16));
        }
        // Dropping the communicator calls `finalize` a fourth time.
    }
}

#[test]
fn missing_costs_or_channels_are_accepted() {
    let communicator = communicator(Version::Five);
    let context = communicator.context;
    let ask = PLUGIN.five.ask;
    let (mut costs, mut channels) = ([5.0_f32; 21], 9);
    // SAFETY: null pointers are under test.
    unsafe {
        assert_eq!(ask(context, 4, 8, 1, null_mut(), 7, 3, 0, &raw mut channels), 0);
        assert_eq!(channels, 9);
        let odd = costs.as_mut_ptr().cast::<u8>().add(1).cast();
        assert_eq!(ask(context, 4, 8, 1, odd, 7, 2, 0, &raw mut channels), 0);
        assert_eq!((costs, channels), ([5.0; 21], 9));
        assert_eq!(ask(context, 4, 8, 1, costs.as_mut_ptr().cast(), 7, 3, 0, null_mut()), 0);
    }
    assert_eq!(costs[4 * 3 + 2], 0.0);
}

#[test]
fn invalid_shapes_are_ignored() {
    let communicator = communicator(Version::Six);
    let costs = vec![5.0; 64 * 16];
    for (algorithms, protocols) in [
        (0, 3),
        (7, 0),
        (-1, 3),
        (7, -1),
        (c_int::MIN, c_int::MIN),
        (c_int::MAX, 3),
        (7, c_int::MAX),
        (c_int::MAX, c_int::MAX),
        (33, 3),
        (7, 9),
    ] {
        let answer = communicator.ask(CALL, &costs, algorithms, protocols);
        assert_eq!((answer.costs, answer.channels), (costs.clone(), -7), "{algorithms} {protocols}");
    }
}

#[test]
fn other_numbers_of_algorithms_and_protocols_are_supported() {
    for version in VERSIONS {
        let communicator = communicator(version);
        // NVLS is algorithm 4: with only four algorithms, the next row is used.
        let answer = communicator.ask(CALL, &[5.0; 12], 4, 3);
        assert_eq!((answer.costs[3], answer.channels), (0.0, 4));
        // Simple is protocol 2: with only two protocols, the next row is used.
        let answer = communicator.ask(CALL, &[5.0; 14], 7, 2);
        assert_eq!((answer.costs[2], answer.channels), (0.0, 4));
        // An additional protocol changes the positions of the costs.
        let answer = communicator.ask(CALL, &[5.0; 32], 8, 4);
        assert_eq!((answer.costs[4 * 4 + 2], answer.channels), (0.0, 16));
        // No combination of the table exists, so nothing is changed.
        let answer = communicator.ask(CALL, &[5.0], 1, 1);
        assert_eq!((answer.costs, answer.channels), (vec![5.0], -7));
    }
}

#[test]
fn impossible_strategies_are_skipped_for_the_next_row() {
    for impossible in [-1.0, -1024.0, f32::NEG_INFINITY, f32::NAN] {
        let communicator = communicator(Version::Five);
        let mut costs = [5.0; 21];
        costs[14] = impossible;
        let answer = communicator.ask(CALL, &costs, 7, 3);
        assert_eq!(answer.costs[14].to_bits(), impossible.to_bits());
        assert_eq!((answer.costs[3], answer.channels), (0.0, 4));
    }
}

#[test]
fn nccls_last_resort_is_not_selected() {
    let communicator = communicator(Version::Five);
    let mut costs = [-1.0; 21];
    // The costs are those that NCCL sets for 8-bit types on a ring of more than eight ranks.
    (costs[0], costs[3]) = (30.0, 20.0 * 1024.0);
    let answer = communicator.ask(CALL, &costs, 7, 3);
    assert_eq!((answer.costs, answer.channels), (costs.to_vec(), -7));
}

proptest! {
    #[test]
    fn arbitrary_numbers_change_at_most_one_cost(function: c_int, bytes: usize, operations: c_int, registered: c_int, costs in prop::collection::vec(any::<f32>(), 256), algorithms: c_int, protocols: c_int) {
        let communicator = communicator(Version::Six);
        let call = Call { function, bytes, operations, registered };
        // For any shape that is passed, the memory is large enough for the largest shape that the plugin accesses.
        let answer = communicator.ask(call, &costs, algorithms, protocols);
        prop_assert!(answer.costs.iter().zip(&costs).filter(|(now, before)| now.to_bits() != before.to_bits()).count() <= 1);
    }

    #[test]
    fn only_functions_of_the_table_get_channels(function in -2..20_i32, bytes: usize, operations: c_int, registered: c_int) {
        let communicator = communicator(Version::Four);
        let answer = communicator.ask(Call { function, bytes, operations, registered }, &[5.0; 21], 7, 3);
        prop_assert_eq!(answer.channels, if function == 4 { 16 } else { -7 });
    }
}
