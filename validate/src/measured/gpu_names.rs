//! GPUs by the names that drivers give them, next to those of fabrics: `NVIDIA H100 80GB HBM3` is `H100 SXM`.

/// A GPU by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    /// Its words that are neither maker nor memory nor board, one after the other: `H100`, `RTXPRO6000`.
    chip: String,
    board: Option<Board>,
}

/// The board that a chip sits on, where several exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Board {
    Sxm,
    Pcie,
    Nvl,
}

/// Words that do not distinguish models: makers, families, memory, editions.
const NOISE: [&str; 19] = [
    "NVIDIA",
    "AMD",
    "TESLA",
    "INSTINCT",
    "GEFORCE",
    "QUADRO",
    "RADEON",
    "CORPORATION",
    "VF",
    "GPU",
    "GRAPHICS",
    "OAM",
    "GENERATION",
    "BLACKWELL",
    "SERVER",
    "WORKSTATION",
    "EDITION",
    "SUPERCHIP",
    "GRACE",
];

impl Model {
    fn of(name: &str) -> Self {
        let mut found = Self { chip: String::new(), board: None };
        for word in name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
            let word = word.to_ascii_uppercase();
            let is_memory = word.strip_suffix("GB").is_some_and(|size| size.bytes().all(|byte| byte.is_ascii_digit()))
                || word.starts_with("HBM")
                || word == "3E";
            if word.starts_with("SXM") {
                found.board = Some(Board::Sxm);
            } else if word == "PCIE" {
                found.board = Some(Board::Pcie);
            } else if word == "NVL" {
                found.board = Some(Board::Nvl);
            } else if !is_memory && !NOISE.contains(&word.as_str()) {
                found.chip.push_str(&word);
            }
        }
        found
    }

    /// The board; the drivers' names of SXM boards of Hopper and later do not name it.
    fn board(&self) -> Option<Board> {
        let unnamed = ["H100", "H200", "H800", "B200", "B300"].contains(&self.chip.as_str()).then_some(Board::Sxm);
        self.board.or(unnamed)
    }
}

/// Returns true if two names can be those of one GPU: unnamed boards and memory sizes do not distinguish models.
pub(super) fn can_be_one(name: &str, other: &str) -> bool {
    let (a, b) = (Model::of(name), Model::of(other));
    let boards = match (a.board(), b.board()) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    a.chip == b.chip && boards
}

/// Returns true for names of AMD's GPUs.
pub(super) fn is_of_amd(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["AMD", "INSTINCT", "RADEON"].iter().any(|word| name.contains(word))
        || Model::of(&name).chip.strip_prefix("MI").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers_and_fabrics() {
        for (log, fabric, one) in [
            ("NVIDIA H100 80GB HBM3", "H100 SXM", true),
            ("NVIDIA H200", "H200 SXM", true),
            ("NVIDIA H200 NVL", "H200 SXM", false),
            ("NVIDIA H100 PCIe", "H100 SXM", false),
            ("NVIDIA H100 NVL", "H100 NVL", true),
            ("NVIDIA H200", "H100 SXM", false),
            ("NVIDIA A100-SXM4-40GB", "A100 SXM 80GB", true),
            ("NVIDIA A100 80GB PCIe", "A100 SXM 80GB", false),
            ("Tesla V100-SXM2-16GB", "V100 SXM2 32GB", true),
            ("NVIDIA GH200 120GB", "GH200 96GB", true),
            ("NVIDIA GB200", "GB200", true),
            ("NVIDIA B200", "B200 SXM", true),
            ("NVIDIA H20-3e", "H100 SXM", false),
            ("AMD Instinct MI300X VF", "MI300X", true),
            ("AMD Instinct MI355X", "H100 SXM", false),
            ("NVIDIA L40S", "L40S", true),
            ("NVIDIA GeForce RTX 4090", "RTX 4090", true),
            ("NVIDIA RTX 6000D", "RTX PRO 6000 Blackwell Server", false),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server", true),
        ] {
            assert_eq!(can_be_one(log, fabric), one, "{log} · {fabric}");
        }
        assert!(is_of_amd("AMD Instinct MI300X VF") && is_of_amd("MI355X") && !is_of_amd("NVIDIA H100"));
    }
}
