// Package hostmemory tells how much memory the host has left for this process.
package hostmemory

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Available returns the number of bytes of host memory that the program can still take
// without swapping. It is the smaller of two numbers, from the system and from the process's
// control groups. It returns false if both are unknown. An allocation of more bytes may succeed,
// but the system kills the program when it writes to that memory.
func Available() (int64, bool) {
	free, known := meminfo("MemAvailable:")
	if left, ok := cgroupLeft(); ok && (!known || left < free) {
		free, known = left, true
	}
	return free, known
}

// meminfo returns the value of a field of /proc/meminfo, in bytes.
func meminfo(field string) (int64, bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	return fieldOf(text, field, 1024)
}

// fieldOf finds the line that begins with a name. It returns the number after the name, multiplied
// by scale.
func fieldOf(text []byte, name string, scale int64) (int64, bool) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == name {
			n, err := strconv.ParseInt(words[1], 10, 64)
			return n * scale, err == nil
		}
	}
	return 0, false
}

// cgroupLeft returns the number of bytes that the memory limits of the process's control groups
// leave. That is the limit, less the memory that is used and cannot be dropped.
func cgroupLeft() (least int64, known bool) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) < 3 {
			continue
		}
		root, limit, used, cached := "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
		switch {
		case parts[1] == "":
		case strings.Contains(","+parts[1]+",", ",memory,"):
			root, limit, used, cached = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
		default:
			continue
		}
		for group := filepath.Clean("/" + parts[2]); ; group = filepath.Dir(group) {
			folder := filepath.Join(root, group)
			if most, ok := number(filepath.Join(folder, limit)); ok {
				now, _ := number(filepath.Join(folder, used))
				stat, _ := os.ReadFile(filepath.Join(folder, "memory.stat"))
				drop, _ := fieldOf(stat, cached, 1)
				if left := max(0, most-now+drop); !known || left < least {
					least, known = left, true
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return least, known
}

// number reads a file that holds one number. It returns false for the text "max".
func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
