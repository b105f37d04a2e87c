//! Thread blocks of a file, their connections and steps.

/// Route of a transfer: source, destination, and index among the connections between the two, in order of sending
/// channels.
pub(super) type TransferRoute = (u32, u32, u32);

/// Placeholder for the number of a missing connection, step or position.
pub(super) const NONE: u32 = u32::MAX;

/// Action of one step. Values are operation numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepAction {
    /// Copies or reduces in the GPU's memory.
    Local(u32),
    /// Sends the data of a transfer.
    Send(u32),
    /// Receives the data of a transfer.
    Receive(u32),
    /// Receives the data of transfer `.0` and forwards it by transfer `.1`.
    Relay(u32, u32),
}

impl StepAction {
    pub(super) fn sent(self) -> Option<u32> {
        match self {
            Self::Send(op) | Self::Relay(_, op) => Some(op),
            Self::Local(_) | Self::Receive(_) => None,
        }
    }

    pub(super) fn received(self) -> Option<u32> {
        match self {
            Self::Receive(op) | Self::Relay(op, _) => Some(op),
            Self::Local(_) | Self::Send(_) => None,
        }
    }
}

/// Thread block, with its connections given by number.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadBlock {
    pub(super) sends: Option<u32>,
    pub(super) receives: Option<u32>,
    pub(super) actions: Vec<StepAction>,
}
