//! Division of a schedule into independent pieces, which are grouped into rounds that run the same code.
//!
//! Chunks that are combined with or copied to each other form one *piece*; different pieces are independent. Channels
//! and loops of a schedule result in separate pieces. Pieces in which the same ranks have the same roles form a
//! *class*. The j-th pieces of all classes of a channel form a *round*, the work that all ranks do in parallel. A
//! thread block runs the rounds of its channel one after another.

use rustc_hash::FxHashMap;

use super::local_operations::{Cell, MoveKind, Moves};

/// Work that all ranks do in parallel, as indices of moves in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) channel: u16,
    pub(super) moves: Vec<u32>,
}

/// Disjoint sets of cells (union-find).
struct Groups(Vec<Cell>);

impl Groups {
    fn root(&mut self, cell: Cell) -> Cell {
        let mut current = cell;
        while self.0[current as usize] != current {
            let parent = self.0[self.0[current as usize] as usize];
            self.0[current as usize] = parent;
            current = parent;
        }
        current
    }

    fn join(&mut self, a: Cell, b: Cell) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b) as usize] = a.min(b);
    }
}

/// Divides moves into rounds, in the order in which every block runs them.
pub(super) fn rounds(moves: &Moves, ranks: u32) -> Vec<Round> {
    let mut groups = Groups((0..moves.cells(ranks) as Cell).collect());
    // Cell in which each message is stored.
    let mut received = vec![0 as Cell; moves.messages.len()];
    for operation in &moves.moves {
        if let (Some(dst), Some(message)) = (operation.kind.written(), operation.kind.message()) {
            received[message as usize] = dst;
        }
    }
    for operation in &moves.moves {
        let dst = destination(operation.kind, &received);
        if let Some(src) = operation.kind.read()
            && !moves.is_input(src)
        {
            groups.join(src, dst);
        }
    }
    // Moves of each piece; pieces are in the order of their first move.
    let mut pieces: Vec<Vec<u32>> = Vec::new();
    let mut number: FxHashMap<Cell, usize> = FxHashMap::default();
    for (i, operation) in moves.moves.iter().enumerate() {
        let root = groups.root(destination(operation.kind, &received));
        let piece = *number.entry(root).or_insert_with(|| {
            pieces.push(Vec::new());
            pieces.len() - 1
        });
        pieces[piece].push(i as u32);
    }
    let mut members: FxHashMap<(u16, Vec<MoveRole>), u32> = FxHashMap::default();
    let mut rounds: FxHashMap<(u32, u16), Vec<u32>> = FxHashMap::default();
    for piece in pieces {
        let channel = piece.iter().map(|&i| moves.moves[i as usize].channel).min().unwrap_or(0);
        let roles: Vec<MoveRole> = piece.iter().map(|&i| role(moves, i as usize)).collect();
        let member = members.entry((channel, roles)).or_insert(0);
        rounds.entry((*member, channel)).or_default().extend(piece);
        *member += 1;
    }
    let mut rounds: Vec<((u32, u16), Vec<u32>)> = rounds.into_iter().collect();
    rounds.sort_unstable_by_key(|round| round.0);
    let mut result: Vec<Round> = Vec::with_capacity(rounds.len());
    for ((_, channel), mut list) in rounds {
        list.sort_unstable();
        result.push(Round { channel, moves: list });
    }
    result
}

/// Returns the cell that a move writes; for a send, the cell that the receiver writes.
fn destination(kind: MoveKind, received: &[Cell]) -> Cell {
    match (kind.written(), kind.message()) {
        (Some(dst), _) => dst,
        (None, Some(message)) => received[message as usize],
        (None, None) => 0,
    }
}

/// Role of a move among those of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct MoveRole {
    rank: u32,
    /// Number of the kind of operation.
    kind: u8,
    /// Peer; for a local move, the rank itself.
    peer: u32,
}

/// Returns the role of the move with index `i`.
fn role(moves: &Moves, i: usize) -> MoveRole {
    let operation = moves.moves[i];
    let peer = operation.kind.message().map(|message| {
        let message = moves.messages[message as usize];
        if message.from == operation.rank { message.to } else { message.from }
    });
    let kind = match operation.kind {
        MoveKind::Send { .. } => 0,
        MoveKind::Copy { .. } => 1,
        MoveKind::Reduce { .. } => 2,
        MoveKind::Receive { .. } => 3,
        MoveKind::ReceiveReduce { .. } => 4,
        MoveKind::ReceiveReduceInput { .. } => 5,
    };
    MoveRole { rank: operation.rank, kind, peer: peer.unwrap_or(operation.rank) }
}
