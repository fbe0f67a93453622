module github.com/streamtorch/streamtorch

go 1.24.0

require github.com/klauspost/compress v1.18.4

require golang.org/x/image v0.36.0
