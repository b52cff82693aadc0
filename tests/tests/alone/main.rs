//! What must have the machine for itself: loads at the limit of two processors, and what they do to others.

mod bystanders;
mod leases_bounds;
mod overload;
