//! The conformance cases over the wire.

use std::rc::Rc;
use tidegate_tests::corpus::holds_over_the_wire;

#[tokio::test]
async fn every_conformance_case_holds_over_the_wire() -> anyhow::Result<()> {
    holds_over_the_wire(Rc::new(|_| Vec::new()), &[]).await
}
