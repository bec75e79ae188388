// pg-boss as a peer: one process that takes a turn for each line on its input and answers with one line of JSON.
// Usage: node pgboss.mjs <node_modules> <socket directory> <port> <user> <database> <connections>; a line is {"seconds": s, "payloads": [...]}.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { join } from 'node:path'

const [modules, host, port, user, database, connections] = process.argv.slice(2)
const PgBoss = createRequire(join(modules, 'pg-boss', 'package.json'))('pg-boss')
const boss = new PgBoss({ host, port: Number(port), user, database, max: Number(connections), supervise: false, schedule: false })
boss.on('error', (error) => process.stderr.write(`${error}\n`))
await boss.start()
const queue = 'bench'
await boss.createQueue(queue)
process.stdout.write('{"ready":true}\n')

async function turn ({ seconds, payloads }) {
  const latencies = []
  const began = performance.now()
  const until = began + 1000 * seconds
  const cpu = process.cpuUsage()
  let sent = 0
  async function sender (at) {
    for (;;) {
      const start = performance.now()
      if (start >= until) return
      if (await boss.send(queue, payloads[at++ % payloads.length])) sent++
      latencies.push(performance.now() - start)
    }
  }
  await Promise.all(Array.from({ length: Number(connections) }, (_, at) => sender(at)))
  const spent = process.cpuUsage(cpu)
  return { sent, seconds: (performance.now() - began) / 1000, latencies, cpu: (spent.user + spent.system) / 1e6 }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await turn(JSON.parse(line))) + '\n')
}
await boss.stop({ graceful: false })
process.exit(0)
