package main

import "testing"

// Ranks have different numbers of test batches, so the step of the test asks no other rank.
func TestTrainer_Captured_AsksNoRank(t *testing.T) {
	if (&trainer{}).captured().Agree != nil {
		t.Error("the captured step of the test waits for the other ranks")
	}
}
