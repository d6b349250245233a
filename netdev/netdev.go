// Package netdev accesses network devices in the network namespace of its caller: values below
// /proc/sys, features by ethtool, and packets. It also repeats listings by netlink that changes
// interrupted, and converts routes.
package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sysctl returns a value below /proc/sys, such as that of "net/ipv4/ip_forward".
func Sysctl(path string) (string, error) {
	value, err := os.ReadFile(filepath.Join("/proc/sys", path))
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", path, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl sets a value below /proc/sys.
func SetSysctl(path, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0); err != nil {
		return fmt.Errorf("sysctl %s: %w", path, err)
	}
	return nil
}

// Ethtool executes a command with one number (struct ethtool_value) on a device, and returns the
// number in the result.
func Ethtool(name string, command, value uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("ethtool %s: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	data := struct{ command, value uint32 }{command, value}
	err = ethtool(fd, name, unsafe.Pointer(&data))
	return data.value, err
}
