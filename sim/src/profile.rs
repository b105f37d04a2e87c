//! What software costs. (To be filled.)
