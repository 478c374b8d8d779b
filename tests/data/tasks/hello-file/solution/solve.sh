#!/bin/bash
echo "hello from the sandbox" > /app/hello.txt
