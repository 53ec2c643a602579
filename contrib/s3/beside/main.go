// Puts and gets of small objects at `pando s3` and at gateways of others, in turns in one run.
//
// Every gateway runs from the beginning to the end on this machine, over a fresh folder of --dir; one
// at a time has work. The client sends requests that were signed before its clock runs, over
// connections that stay open, and neither parses nor allocates more than it must.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A gateway of one name, and its processes.
type gateway struct {
	name, address string
	processes     []*exec.Cmd
	puts, gets    []rate
}

var (
	folder  = flag.String("dir", "", "folder on the disk to be measured; everything goes below it")
	pando   = flag.String("pando", "", "the program pando")
	rounds  = flag.Int("rounds", 5, "number of rounds")
	objects = flag.Int("objects", 2000, "objects of a turn")
	size    = flag.Int("size", 1024, "bytes of an object")
	keys    = flag.Int("keys", 0, "objects of a listing at the end, in one directory; 0: no listing")
	peers   = flag.String("peers", "versitygw,minio", "programs to run beside, in PATH or with a path")
)

func free() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// Starts a process of a gateway. It ends with this program.
func (g *gateway) start(environment []string, name string, arguments ...string) {
	command := exec.Command(name, arguments...)
	command.Env = append(os.Environ(), environment...)
	out, err := os.Create(filepath.Join(*folder, fmt.Sprintf("%s.%d.log", g.name, len(g.processes))))
	if err != nil {
		log.Fatal(err)
	}
	command.Stdout, command.Stderr = out, out
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		log.Fatal(err)
	}
	g.processes = append(g.processes, command)
}

func (g *gateway) wait(address string) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if connection, err := net.Dial("tcp", address); err == nil {
			connection.Close()
			return
		}
	}
	log.Fatalf("%s does not listen: see its log in %s", g.name, *folder)
}

func run(name string, arguments ...string) {
	if said, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		log.Fatalf("%s %s: %v: %s", name, strings.Join(arguments, " "), err, said)
	}
}

func startPando() *gateway {
	g := &gateway{name: "pando", address: free()}
	data, keys, server := filepath.Join(*folder, "pando"), filepath.Join(*folder, "keys"), free()
	run(*pando, "format", "--data", data)
	line := fmt.Sprintf("%s %s %s\n", accessKey, secretKey, filepath.Join(data, "admin.token"))
	if err := os.WriteFile(keys, []byte(line), 0o600); err != nil {
		log.Fatal(err)
	}
	g.start(nil, *pando, "serve", "--data", data, "--listen", server, "--http", "off")
	g.wait(server)
	g.start(nil, *pando, "s3", server, "--keys", keys, "--listen", g.address)
	return g
}

func startPeer(program string) *gateway {
	g := &gateway{name: filepath.Base(program), address: free()}
	data := filepath.Join(*folder, g.name)
	if err := os.Mkdir(data, 0o755); err != nil {
		log.Fatal(err)
	}
	switch g.name {
	case "versitygw":
		g.start(nil, program, "--access", accessKey, "--secret", secretKey, "--port", g.address,
			"--quiet", "--keep-alive", "posix", data)
	case "minio":
		users := []string{"MINIO_ROOT_USER=" + accessKey, "MINIO_ROOT_PASSWORD=" + secretKey,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off"}
		g.start(users, program, "server", "--quiet", "--address", g.address, data)
	default:
		log.Fatalf("%s: how to start it is not known", program)
	}
	return g
}

// Fills a directory, which is listed three times.
func (g *gateway) list() {
	requests := make([][]byte, *keys)
	for at := range requests {
		request, err := signed(g.address, "PUT", fmt.Sprintf("/%s/list/%07d", listed, at), nil)
		if err != nil {
			log.Fatal(err)
		}
		requests[at] = request
	}
	if _, err := load(g.address, requests, nil, false); err != nil {
		log.Fatalf("%s: %v", g.name, err)
	}
	for range 3 {
		waited, found, err := listAll(g.address, listed)
		if err != nil || found != *keys {
			log.Fatalf("%s: %d keys: %v", g.name, found, err)
		}
		fmt.Printf("%-10s listing of %d keys: %s of waiting\n", g.name, found,
			waited.Round(time.Millisecond))
	}
}

func (g *gateway) turn(round int) {
	body := bytes.Repeat([]byte{'a' + byte(round%26)}, *size)
	for _, method := range []string{"PUT", "GET"} {
		requests := make([][]byte, *objects)
		for at := range requests {
			request, err := signed(g.address, method, fmt.Sprintf("/%s/%d/%06d", bucket, round, at), body)
			if err != nil {
				log.Fatal(err)
			}
			requests[at] = request
		}
		found, err := load(g.address, requests, body, method == "GET")
		if err != nil {
			log.Fatalf("%s: %v", g.name, err)
		}
		if method == "PUT" {
			g.puts = append(g.puts, found)
		} else {
			g.gets = append(g.gets, found)
		}
		fmt.Printf("round %d  %-10s %s %8.0f/s  p50 %8s  p99 %8s\n", round, g.name, method,
			found.perSecond, found.median.Round(time.Microsecond), found.p99.Round(time.Microsecond))
	}
}

// The median of some numbers, and the least and greatest of them.
func spread(numbers []float64) (median, least, greatest float64) {
	slices.Sort(numbers)
	return numbers[len(numbers)/2], numbers[0], numbers[len(numbers)-1]
}

func (g *gateway) report(kind string, ours, theirs []rate) {
	var rates, ratios []float64
	for at := range theirs {
		rates = append(rates, theirs[at].perSecond)
		ratios = append(ratios, ours[at].perSecond/theirs[at].perSecond)
	}
	rate, low, high := spread(rates)
	ratio, least, greatest := spread(ratios)
	fmt.Printf("| %s | %s | %.0f (%.0f to %.0f) | %.2f (%.2f to %.2f) |\n", kind, g.name, rate, low,
		high, ratio, least, greatest)
}

func main() {
	flag.Parse()
	if *folder == "" || *pando == "" || *rounds < 1 || *objects < connections {
		log.Fatal("--dir and --pando are needed, a round and an object for each connection")
	}
	if err := os.Mkdir(*folder, 0o755); err != nil {
		log.Fatal(err)
	}
	gateways := []*gateway{startPando()}
	for _, peer := range strings.FieldsFunc(*peers, func(c rune) bool { return c == ',' }) {
		gateways = append(gateways, startPeer(peer))
	}
	for _, g := range gateways {
		g.wait(g.address)
		for err := makeBucket(g.address, bucket); err != nil; err = makeBucket(g.address, bucket) {
			// A gateway may listen before it serves.
			log.Print(g.name, ": ", err)
			time.Sleep(time.Second)
		}
		if err := makeBucket(g.address, listed); err != nil {
			log.Fatal(err)
		}
	}
	// The round before the first is not counted.
	for round := range *rounds + 1 {
		for at := range gateways {
			gateways[(at+round)%len(gateways)].turn(round)
		}
	}
	fmt.Printf("\n%d connections, %d objects of %d bytes a turn, %d rounds: median (least to greatest)\n\n",
		connections, *objects, *size, *rounds)
	fmt.Println("| | gateway | a second | pando is times as fast |\n|---|---|---|---|")
	for _, g := range gateways {
		g.report("PUT", gateways[0].puts[1:], g.puts[1:])
		g.report("GET", gateways[0].gets[1:], g.gets[1:])
	}
	for _, g := range gateways {
		if *keys > 0 {
			g.list()
		}
	}
	for _, g := range gateways {
		for _, process := range g.processes {
			process.Process.Signal(syscall.SIGTERM)
		}
	}
	for _, g := range gateways {
		for _, process := range g.processes {
			process.Wait()
		}
	}
}
