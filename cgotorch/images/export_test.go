package images

// NormalizedOnDevice is for tests.
var NormalizedOnDevice = normalizedOnDevice
