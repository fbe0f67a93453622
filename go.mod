module github.com/streamtorch/streamtorch

go 1.24
