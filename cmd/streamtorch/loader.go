//go:build loader

package main

var withLibTorch []command
