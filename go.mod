module github.com/streamtorch/streamtorch

go 1.24

require github.com/klauspost/compress v1.18.4 // indirect
