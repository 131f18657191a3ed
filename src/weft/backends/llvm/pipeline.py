"""The passes that LLVM runs over weft's modules, by name: what compiled code depends on, for those who load it."""

PIPELINE = "always-inline,sroa,simplifycfg; O1; assembly: instcombine, O2"
