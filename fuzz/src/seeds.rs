//! Writes the first inputs of a corpus.

use std::path::Path;

pub(crate) fn write(directory: &Path, seeds: &[Vec<u8>]) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for (number, seed) in seeds.iter().enumerate() {
        std::fs::write(directory.join(format!("seed-{number:02}")), seed)?;
    }
    Ok(())
}
