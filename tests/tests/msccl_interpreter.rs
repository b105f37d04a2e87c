//! Interpreter of the steps of MSCCL algorithm files, with FIFOs of finite depth. It knows the text of the files alone:
//! each thread block runs its steps in order, a send waits for a free place on its connection, a receive for a message,
//! and every step for the steps of other thread blocks of its GPU that it names.

use std::collections::BTreeMap;

struct Step {
    sends: bool,
    receives: bool,
    /// Thread block and step that must be done before.
    after: Option<(usize, i64)>,
}

struct Block {
    sends_to: i64,
    receives_from: i64,
    channel: i64,
    steps: Vec<Step>,
}

fn attribute(line: &str, name: &str) -> i64 {
    let start = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    line[start..].split('"').next().unwrap().parse().unwrap()
}

fn parse(text: &str) -> Vec<Vec<Block>> {
    let mut gpus: Vec<Vec<Block>> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("<gpu ") {
            gpus.push(Vec::new());
        } else if line.starts_with("<tb ") {
            let [sends_to, receives_from, channel] = ["send", "recv", "chan"].map(|name| attribute(line, name));
            gpus.last_mut().unwrap().push(Block { sends_to, receives_from, channel, steps: Vec::new() });
        } else if line.starts_with("<step ") {
            let kind = line.split(" type=\"").nth(1).unwrap().split('"').next().unwrap();
            let block = attribute(line, "depid");
            gpus.last_mut().unwrap().last_mut().unwrap().steps.push(Step {
                sends: matches!(kind, "s" | "rcs" | "rrs" | "rrcs"),
                receives: matches!(kind, "r" | "rcs" | "rrs" | "rrc" | "rrcs"),
                after: usize::try_from(block).ok().map(|block| (block, attribute(line, "deps"))),
            });
        }
    }
    gpus
}

/// Returns true if all thread blocks of a file complete while each connection holds at most `depth` messages that were
/// not received.
pub(crate) fn completes(text: &str, depth: u32) -> bool {
    let gpus = parse(text);
    let mut done: Vec<Vec<usize>> = gpus.iter().map(|blocks| vec![0; blocks.len()]).collect();
    // Messages on each connection, by sender, receiver and channel.
    let mut unread: BTreeMap<(i64, i64, i64), u32> = BTreeMap::new();
    loop {
        let mut progress = false;
        for (gpu, blocks) in gpus.iter().enumerate() {
            for (number, block) in blocks.iter().enumerate() {
                while let Some(step) = block.steps.get(done[gpu][number]) {
                    let incoming = (block.receives_from, gpu as i64, block.channel);
                    let outgoing = (gpu as i64, block.sends_to, block.channel);
                    let is_after = step.after.is_none_or(|(other, step)| done[gpu][other] as i64 > step);
                    let has_message = !step.receives || unread.get(&incoming).is_some_and(|&count| count > 0);
                    let has_place = !step.sends || unread.get(&outgoing).is_none_or(|&count| count < depth);
                    if !(is_after && has_message && has_place) {
                        break;
                    }
                    if step.receives {
                        *unread.entry(incoming).or_default() -= 1;
                    }
                    if step.sends {
                        *unread.entry(outgoing).or_default() += 1;
                    }
                    done[gpu][number] += 1;
                    progress = true;
                }
            }
        }
        if !progress {
            return gpus
                .iter()
                .zip(&done)
                .all(|(blocks, done)| blocks.iter().zip(done).all(|(block, &done)| done == block.steps.len()));
        }
    }
}
